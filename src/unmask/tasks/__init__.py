"""Tasks: what a model can be fine-tuned for, from a user's labelled data to its answers.

Each task trains with an objective. To add a task, write a module here and add a line below. Classes
are named as strings, so a task is imported only when it is used.
"""

TASKS = {
    "classify": "unmask.tasks.classify:Classify",
    "regress": "unmask.tasks.regress:Regress",
    "qa": "unmask.tasks.qa:Qa",
    "ner": "unmask.tasks.ner:Ner",
    "translate": "unmask.tasks.translate:Translate",
}
