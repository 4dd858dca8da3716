"""Generated requests to memcached and to Pumice, in segments that begin with an empty cache: what test_differential.py and test_binary.py share."""

import collections

from harness import Failure, expect


class Comparison:
    """Subclasses run a segment on both sides, and say where the answers first differ: (number of the request, theirs, ours), or None."""

    def __init__(self, theirs, ours):
        self.sides = [theirs, ours]
        # What was answered, so that one sees what was compared.
        self.occurred = collections.Counter()
        self.restarts = False

    def shrink(self, segment):
        """The shortest part of a segment that still has a difference, and that; None where it has none when it is run again."""
        difference, size = self.run(segment), max(1, len(segment) // 2)
        while difference:
            at, smaller = 0, False
            while at < len(segment):
                without = segment[:at] + segment[at + size:]
                again = self.run(without) if without else None
                if again:
                    segment, difference, smaller = without, again, True
                else:
                    at += size
            if size == 1 and not smaller:
                break
            size = max(1, size // 2)
        return segment, difference

    def generated(self, generator, seed, count, first, length=400):
        """Compares so many requests, in segments numbered from `first` on; one with a difference is cut down and printed."""
        for number in range(first, first + -(-count // length)):
            segment = generator(f"{seed}-{number}").segment(length)
            difference = self.run(segment)
            if difference:
                print(f"difference in segment {number}, at request {difference[0]}:", *map(self.shown, difference[1:]), sep="\n  ", flush=True)
                segment, difference = self.shrink(segment)
                print(f"cut down to {len(segment)} requests:", *map(repr, segment), sep="\n    ", flush=True)
                print("memcached and pumice:", *map(self.shown, (difference or [])[1:]), sep="\n  ", flush=True)
                raise Failure(f"expected no difference; seen one with seed {seed} in segment {number}")

    @staticmethod
    def shown(answer):
        return repr(answer)[:2000]

    def check_coverage(self, must, done):
        """`must` says how often at least something has to be answered in 100,000 requests."""
        print(", ".join(f"{number} {what}" for what, number in self.occurred.most_common()), flush=True)
        rare = {what: self.occurred[what] for what, least in must.items() if self.occurred[what] * 100_000 < least * done}
        expect(done < 20_000 or not rare, "all that is to be compared to have occurred", f"too seldom in {done} requests: {rare}")
