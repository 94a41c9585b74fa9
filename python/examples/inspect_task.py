"""An evaluation of Inspect whose samples run in Stockade sandboxes. A solver of its own stands for the agent, so that this
runs without a key."""

import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox


@solver
def multiply():
    async def solve(state, generate):
        await sandbox().exec(["sh", "-c", "echo $((6 * 7)) >answer"], timeout=10)
        return state

    return solve


@scorer(metrics=[accuracy()])
def answer_file():
    async def score(state, target):
        answer = (await sandbox().read_file("answer")).strip()
        return Score(value=CORRECT if answer == target.text else INCORRECT)

    return score


task = Task(
    dataset=[Sample(input="Write 6 * 7 into `answer`.", target="42")],
    solver=multiply(),
    scorer=answer_file(),
    sandbox="stockade",
)

with tempfile.TemporaryDirectory() as logs:
    [log] = eval(task, model="mockllm/model", log_dir=logs, display="none")
    assert log.status == "success", log.error
    print(log.results.scores[0].metrics["accuracy"].value)
    assert log.results.scores[0].metrics["accuracy"].value == 1
