"""Models -> ONNX: compiled for unmask in fp32 or int8, or exported for other runtimes."""
