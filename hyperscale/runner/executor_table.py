"""Which executors of a run are free: one per core, and further ones that share those cores."""


class ExecutorTable:
    """Executors 0 … `cores` - 1 have a core each; the next `shared_max` share these cores.

    A core that is released passes to the executor that has shared cores for longest, so a core is
    free only if no executor in use lacks one.
    """

    def __init__(self, *, cores: int, shared_max: int) -> None:
        self.cores = cores
        # Kept sorted, so that runs repeat.
        self._free = list(range(cores))
        self._free_shared = list(range(cores, cores + shared_max))
        self._coreless: list[int] = []  # in use, in the order in which they were taken
        self._inherited: dict[int, int] = {}  # further executor -> core that passed to it

    @property
    def busy(self) -> int:
        """Cores in use."""
        return self.cores - len(self._free)

    @property
    def is_sharing(self) -> bool:
        """True if an executor in use has no core of its own."""
        return bool(self._coreless)

    def take_cores(self, count: int) -> list[int]:
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def take_shared(self) -> list[int]:
        """Return one executor without a core, or none if too many share cores already."""
        taken, self._free_shared = self._free_shared[:1], self._free_shared[1:]
        self._coreless += taken
        return taken

    def release(self, executor: int) -> None:
        core: int | None = executor
        if executor >= self.cores:
            self._free_shared = sorted([*self._free_shared, executor])
            core = self._inherited.pop(executor, None)
            if core is None:
                self._coreless.remove(executor)
                return
        assert core is not None
        if self._coreless:
            self._inherited[self._coreless.pop(0)] = core
        else:
            self._free = sorted([*self._free, core])
