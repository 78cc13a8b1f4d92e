"""Wall clocks of single processes that are off, and jump while they run.

A small library, compiled here and preloaded, shifts `CLOCK_REALTIME` by what a file says: one file
for each node, found by the `--node-id` of its command line. Monotonic clocks are not touched.
"""

import mmap
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift_s;

__attribute__((constructor)) static void find_shift(void) {
    char line[65536], path[4096];
    const char *directory = getenv("CLOCK_SHIFTS");
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (!directory || file < 0) return;
    ssize_t length = read(file, line, sizeof line - 1);
    close(file);
    if (length <= 0) return;
    line[length] = 0;
    for (char *word = line; word < line + length; word += strlen(word) + 1) {
        if (strcmp(word, "--node-id")) continue;
        snprintf(path, sizeof path, "%s/%s", directory, word + strlen(word) + 1);
        int shifts = open(path, O_RDONLY | O_CLOEXEC);
        if (shifts < 0) return;
        void *found = mmap(0, sizeof *shift_s, PROT_READ, MAP_SHARED, shifts, 0);
        close(shifts);
        if (found != MAP_FAILED) shift_s = found;
        return;
    }
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    long failed = syscall(SYS_clock_gettime, clock, at);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!failed && is_wall && shift_s) at->tv_sec += *shift_s;
    return (int)failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class ShiftedClocks:
    """The wall clocks of nodes, in seconds beside the true time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        source, library = directory / "shift.c", directory / "shift.so"
        source.write_text(_SOURCE)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True
        )
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFTS": str(directory)}

    def shift(self, node: str, seconds: int) -> None:
        """Set the clock of a node, from now on and after its restart. Its file is made before the
        node starts."""
        path = self._directory / node
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:] = struct.pack("q", seconds)
