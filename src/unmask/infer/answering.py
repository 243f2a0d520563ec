"""Records -> answers of a task, in their order and in constant memory.

A record may have several windows, or none. The engine knows windows only, so records wait in a
queue until all of their windows are answered.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice

from unmask.infer import engine
from unmask.system.errors import TextTooLong
from unmask.tasks.base import Answer, Record, Task, Window
from unmask.tasks.criterion import Criterion
from unmask.tasks.forward import Forward
from unmask.tasks.results import AnswerCounts
from unmask.text.tokens import Tokenizers

HELD = 2**24  # characters of waiting records at which a group ends


def answer_records(
    forward: Forward,
    tokens: Tokenizers,
    task: Task[Record, Answer],
    records: Iterable[Record],
    *,
    known: Criterion | None = None,
    tally: AnswerCounts | None = None,
    numbers: Iterator[int] | None = None,
    truncate: bool = True,
) -> Iterator[tuple[Record, Answer]]:
    """Yield every record with its answer, in order.

    `tally` counts truncated texts and, with the criterion `known`, the loss of labelled windows.
    Without `truncate`, a text that is too long is an error.
    """
    waiting: deque[tuple[Record, Sequence[Window]]] = deque()  # answers are due in this order
    held = 0  # characters of the records in `waiting`
    tally = tally or AnswerCounts()

    def windows() -> Iterator[Window]:
        nonlocal held
        numbered = enumerate(task.windows(records, tokens, numbers=numbers or count()), start=1)
        for number, (record, record_windows) in numbered:
            waiting.append((record, record_windows))
            held += sum(map(len, record.key))
            for window in record_windows:
                if window.cut and not truncate:
                    raise TextTooLong(number, len(window.ids) + window.cut, tokens.max_length)
                tally.cut_texts += window.cut > 0
                tally.cut_tokens += window.cut
            yield from record_windows

    def read(batch: list[Window]) -> Sequence[object]:
        result = task.run(forward, batch, tokens, known=known)
        tally.losses.append(result.loss)
        tally.counts.append(result.count)
        return result.values

    scored = engine.run_in_order(
        windows(),
        read,
        lambda: held > HELD,  # GROUP limits windows, not the text of their records
        workers=forward.workers,
        tokens=task.batch_tokens,
        worker_tokens=task.worker_tokens,
    )

    def answer(values: Sequence[object]) -> tuple[Record, Answer]:
        nonlocal held
        record, record_windows = waiting.popleft()
        held -= sum(map(len, record.key))
        return record, task.decode(record, record_windows, values, tokens)

    for value in scored:
        while not waiting[0][1]:  # no windows, as in a blank text: due before this value
            yield answer([])
        yield answer([value, *islice(scored, len(waiting[0][1]) - 1)])  # advances the loop too
    while waiting:  # records at the end that have no windows
        yield answer([])
