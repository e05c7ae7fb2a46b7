"""Pointer chasing: a table of pointers in the prompt is followed for some hops, and one wrong token fails.

`ac bd ca db a=` asks where the pointers lead from `a`; with three hops `cac$` answers, and `$` ends. Reward is 1 iff
the response ends and the whole chain is exact: unlike in running sums no step may be skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from sat_slime.tasks.task import Problem, Task

if TYPE_CHECKING:  # so that settings are read before numpy is imported
    import numpy as np

NODES = "abcdefgh"


class PointerChasing(Task):
    """Pointer chasing: `ac bd ca db a=` (a table of 4 nodes, and where to start) is answered by the nodes of 3 hops,
    `cac$`. Reward 1 iff the response ends and every node is right."""

    name: str = "pointer_chasing"
    """The task: the name of one of ours (docs/extend.md), or the dotted path of a module or class of your own."""
    nodes: Annotated[int, Field(ge=3, le=len(NODES))] = 6
    """Nodes of the table; each points to one of them."""
    hops: Annotated[int, Field(ge=1, le=32)] = 6
    """Hops that an answer writes out, a token each."""

    alphabet: ClassVar[str] = f"{NODES} =$"

    @property
    def prompt_tokens(self) -> int:
        """Three for each node of the table, the first node, and the `=`."""
        return 3 * self.nodes + 2

    @property
    def answer_tokens(self) -> int:
        return self.hops + 1

    @property
    def total_problems(self) -> int:
        return self.nodes ** (self.nodes + 1)

    def draw(self, rng: np.random.Generator) -> Problem:
        """Return a problem whose pointers and first node are uniform."""
        nodes = NODES[: self.nodes]
        table = {
            node: nodes[pointer] for node, pointer in zip(nodes, rng.integers(0, self.nodes, self.nodes), strict=True)
        }
        first = nodes[rng.integers(self.nodes)]
        chain = [first]
        for _ in range(self.hops):
            chain.append(table[chain[-1]])
        return Problem("".join(f"{node}{table[node]} " for node in nodes) + f"{first}=", "".join(chain[1:]))

    def demonstration(self, problem: Problem, rng: np.random.Generator, error_rate: float, direct: bool) -> str:
        """Return the chain, or with `direct` its last node alone. An error leads on from the wrong node."""
        table = {pair[0]: pair[1] for pair in problem.prompt[:-2].split()}
        node = problem.prompt[-2]
        chain = ""
        for slip in rng.random(self.hops) < error_rate:
            node = NODES[rng.integers(self.nodes)] if slip else table[node]
            chain += node
        return (chain[-1] if direct else chain) + self.eos
