"""The file of a graph -> a function that runs it.

ONNX Runtime runs every graph, and one text faster than any other. On processors with instructions
for int8, OpenVINO is a tenth faster if many batches are computed side by side, one on each core; it
is used there if it is installed.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import SettingsError

SLOW = "SkipLayerNormFusion"  # takes eight times as long as what it fuses, on one core
PROCESSOR, INT8 = Path("/proc/cpuinfo"), ("avx512_vnni", "avx_vnni")
Arrays = dict[str, NDArray[Any]]
Runner = Callable[[str, Arrays], NDArray[np.float32]]  # an output's name, inputs -> that output


def needed(*packages: str) -> None:
    """Refuse to go on without what the extra installs."""
    for package in packages:
        try:
            __import__(package)
        except ImportError:
            raise SettingsError(
                f"needs {package}, which is not installed. Run: pip install 'unmask[onnx]'"
            ) from None


def installed(package: str = "onnxruntime") -> bool:
    """Is a runtime here?"""
    return find_spec(package) is not None


@cache
def multiplies_bytes() -> bool:
    """Has the processor instructions for int8?"""
    return PROCESSOR.exists() and any(name in PROCESSOR.read_text() for name in INT8)


def onnx_runtime(path: Path, threads: int) -> Runner:
    """With so many threads for each call."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"], disabled_optimizers=[SLOW]
    )

    def run(output: str, inputs: Arrays) -> NDArray[np.float32]:
        (found,) = session.run([output], inputs)
        return np.asarray(found)

    return run


def openvino(path: Path, callers: int, *, exact: bool) -> Runner:
    """For so many callers at once, a core for each.

    If it need not be exact, it takes bfloat16 for what is not int8, where the processor has it.
    """
    from openvino import Core

    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "NUM_STREAMS": callers,
        "INFERENCE_NUM_THREADS": callers,
    }
    if exact:
        options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = Core().compile_model(path, "CPU", options)
    own = local()  # a request holds the inputs and outputs of its caller

    def run(output: str, inputs: Arrays) -> NDArray[np.float32]:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        found = own.request.infer(inputs)[output]
        return np.array(found)  # the request will write there again

    return run
