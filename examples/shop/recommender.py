"""Which articles customers buy together. Stands for a model that takes long to load."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Self


class Recommender:
    """Counts of pairs that were bought together."""

    def __init__(self, baskets: Iterable[Sequence[str]]) -> None:
        self.loaded_at = datetime.now(UTC)
        self._pairs = Counter(pair for basket in baskets for pair in permutations(basket, 2))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file with a basket per line, its articles separated by commas."""
        return cls(line.split(",") for line in path.read_text(encoding="utf-8").split())

    def also_bought(self, articles: Sequence[str], most: int = 2) -> list[str]:
        """Return articles that were bought with these, the most frequent first."""
        scores: Counter[str] = Counter()
        for (one, other), count in self._pairs.items():
            if one in articles and other not in articles:
                scores[other] += count
        return [article for article, _ in sorted(scores.items(), key=lambda each: (-each[1], each[0]))[:most]]
