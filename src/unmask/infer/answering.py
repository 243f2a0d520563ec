"""Records -> answers of a task, in order, in steady memory."""

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

HELD = 2**24  # characters of records that are answered together


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
    """Every record with its answer, in order, in steady memory.

    `tally` counts on the way; with `known`, losses too. Without `truncate` a text that is too long
    is refused.
    """
    waiting: deque[tuple[Record, Sequence[Window]]] = deque()
    held = 0  # characters of those that wait
    tally = tally or AnswerCounts()

    def windows() -> Iterator[Window]:
        nonlocal held
        numbered = enumerate(task.windows(records, tokens, numbers=numbers or count()), start=1)
        for number, (record, found) in numbered:
            waiting.append((record, found))
            held += sum(map(len, record.key))
            for window in found:
                if window.cut and not truncate:
                    raise TextTooLong(number, len(window.ids) + window.cut, tokens.max_length)
                tally.cut_texts += window.cut > 0
                tally.cut_tokens += window.cut
            yield from found

    def read(some: list[Window]) -> Sequence[object]:
        ran = task.run(forward, some, tokens, known=known)
        tally.losses.append(ran.loss)
        tally.counts.append(ran.count)
        return ran.values

    scored = engine.run_in_order(
        windows(),
        read,
        lambda: held > HELD,
        workers=forward.workers,
        tokens=task.batch_tokens,
        worker_tokens=task.worker_tokens,
    )

    def answer(values: Sequence[object]) -> tuple[Record, Answer]:
        nonlocal held
        record, own = waiting.popleft()
        held -= sum(map(len, record.key))
        return record, task.decode(record, own, values, tokens)

    for value in scored:
        while not waiting[0][1]:  # records without a window, such as blank texts
            yield answer([])
        yield answer([value, *islice(scored, len(waiting[0][1]) - 1)])
    while waiting:
        yield answer([])
