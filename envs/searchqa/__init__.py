"""SearchQA: answer questions by searching a passage collection. See `env` for the rules of the game."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from envs.analysis import english, plain
from envs.base import Suite, Task
from envs.bm25 import BM25
from envs.searchqa import world
from envs.searchqa.corpus import open_corpus
from envs.searchqa.env import INSTRUCTIONS, SearchQAEnv
from envs.searchqa.questions import Question, load_questions
from envs.searchqa.retriever import BM25Retriever, HTTPRetriever, Retriever
from prover_mini.errors import UserError

SERVER_WORKERS = 16


class SearchQA(Suite):
    name = "searchqa"
    instructions = INSTRUCTIONS
    max_turns = 30

    def __init__(self, tasks: list[Task], retriever: Retriever, topk: int = 3, workers: int = 1):
        self.all_tasks = sorted(tasks, key=lambda task: task.id)
        self.retriever = retriever
        self.topk = topk
        self.workers = workers

    def tasks(self, split: str) -> list[Task]:
        """The tasks of "train", "dev" or "test". Raises UserError where the data has none of them."""
        tasks = [task for task in self.all_tasks if task.split == split]
        if not tasks:
            raise UserError(
                f"--data: holds no question of the split {split!r}; give rows a split, add a file {split}.*, or add "
                "questions (without splits one in five goes to test)"
            )
        return tasks

    def make_env(self) -> SearchQAEnv:
        return SearchQAEnv(self.retriever, self.topk)


def load(config: Any) -> SearchQA:
    """The suite that the fields data, corpus, retriever_url, topk and mix of a configuration describe."""
    if config.data and not Path(config.data).exists():
        raise UserError(f"--data {config.data}: no such file or directory")
    if config.data and not (config.corpus or config.retriever_url):
        raise UserError(f"--data {config.data}: give the passages too, with --corpus or --retriever-url")
    tasks = load_questions(Path(config.data)) if config.data else embedded_tasks(config.mix)
    if config.retriever_url:
        retriever = HTTPRetriever(config.retriever_url)
        retriever.probe()
        return SearchQA(tasks, retriever, config.topk, SERVER_WORKERS)
    retriever = corpus_retriever(Path(config.corpus)) if config.corpus else embedded_retriever()
    return SearchQA(tasks, retriever, config.topk)


def corpus_retriever(path: Path) -> BM25Retriever:
    index, passages = open_corpus(path, english)
    return BM25Retriever(index, passages, english)


@cache
def embedded_retriever() -> BM25Retriever:
    """Searches the embedded world, whose passages are made of exact names: nothing to stem."""
    texts = [passage["contents"] for passage in world.passages()]
    return BM25Retriever(BM25.build(map(plain, texts)), texts, plain)


def embedded_tasks(mix: str) -> list[Task]:
    return [
        Task(row["id"], split, row["kind"], Question(row["question"], tuple(row["golden_answers"])))
        for split in ("train", "dev", "test")
        for row in world.questions(split, mix)
    ]
