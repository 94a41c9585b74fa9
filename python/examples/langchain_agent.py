"""A deep agent whose shell is a Stockade sandbox. The model is a scripted one, so that this runs without a key; put your
own in its place."""

from deepagents import create_deep_agent
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage

from stockade.langchain import StockadeSandbox


class ScriptedModel(FakeMessagesListChatModel):
    def bind_tools(self, tools, **options):
        return self


CALL = {"name": "execute", "args": {"command": "echo $((6 * 7)) >answer; cat answer"}, "id": "1"}
model = ScriptedModel(responses=[AIMessage(content="", tool_calls=[CALL]), AIMessage(content="done")])

with StockadeSandbox() as backend:
    agent = create_deep_agent(model=model, backend=backend)
    answer = agent.invoke({"messages": [("user", "What is 6 * 7?")]})
    print(answer["messages"][-2].content)
    assert backend.sandbox.files.read("answer") == b"42\n"
