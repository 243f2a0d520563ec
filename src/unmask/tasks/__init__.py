"""Questions about a user's data -> answers. A task has an objective, by which it is learned.

A new task is a file here and a line below. Nothing is imported before it is used.
"""

TASKS = {
    "classify": "unmask.tasks.classify:Classify",
    "regress": "unmask.tasks.regress:Regress",
    "qa": "unmask.tasks.qa:Qa",
    "ner": "unmask.tasks.ner:Ner",
    "translate": "unmask.tasks.translate:Translate",
}
