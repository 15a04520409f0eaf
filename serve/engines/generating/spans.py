"""Places of a cache that rows take and give back, each in one piece."""


class Spans:
    """Free places of a cache, as (first, behind the last) in order.

    Places that were given back lately are taken last, because a prompt may begin as what they hold.
    """

    def __init__(self, first: int, end: int) -> None:
        """Args: the first place, and the one behind the last."""
        self.first, self.size = first, end - first
        self._free = [(first, end)]
        self._next = first

    @property
    def free(self) -> int:
        """Number of free places."""
        return sum(end - first for first, end in self._free)

    @property
    def largest(self) -> int:
        """Number of free places in the largest piece."""
        return max((end - first for first, end in self._free), default=0)

    def take(self, size: int) -> int | None:
        """Takes so many places in one piece; returns the first, or None if there is no such piece.

        They lie behind those that were taken last, if they can.
        """
        behind = [(max(first, self._next), end) for first, end in self._free if end > self._next]
        for first, end in (*behind, *self._free):
            if end - first >= size:
                self.take_at(first, size)
                self._next = first + size
                return first
        return None

    def take_at(self, first: int, size: int) -> bool:
        """Takes these places; returns whether they were free."""
        for index, (begin, end) in enumerate(self._free):
            if begin <= first and first + size <= end:
                rest = [(begin, first), (first + size, end)]
                self._free[index : index + 1] = [each for each in rest if each[0] < each[1]]
                return True
        return False

    def give_back(self, first: int, size: int) -> None:
        """Frees places that were taken together."""
        pieces = sorted([*self._free, (first, first + size)])
        joined = pieces[:1]
        for begin, end in pieces[1:]:
            if begin == joined[-1][1]:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((begin, end))
        self._free = joined
