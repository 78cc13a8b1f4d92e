/* A disk that fails on command, for whatever a process writes below its ledger's directory.
 *
 * Preloaded into a node. Before each write or sync of such a file it looks into the file named by
 * DISKFAULT: "sync-eio" and "sync-enospc" fail syncs, "write-eio" and "write-enospc" fail writes,
 * "slow 200" makes syncs take 200 ms more. Anything else, or no file: nothing happens.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int is_ledger(int fd) {
    char name[64], path[512];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, "/ledger/ledger.db") != NULL;
}

static void command(char *text, size_t size) {
    text[0] = 0;
    const char *where = getenv("DISKFAULT");
    if (!where) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, where, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t length = syscall(SYS_read, fd, text, size - 1);
    syscall(SYS_close, fd);
    text[length > 0 ? length : 0] = 0;
}

static int sync_fault(int fd) {
    char text[64];
    int milliseconds;
    if (!is_ledger(fd)) return 0;
    command(text, sizeof text);
    if (!strncmp(text, "sync-eio", 8)) return EIO;
    if (!strncmp(text, "sync-enospc", 11)) return ENOSPC;
    if (sscanf(text, "slow %d", &milliseconds) == 1) {
        struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int write_fault(int fd) {
    char text[64];
    if (!is_ledger(fd)) return 0;
    command(text, sizeof text);
    if (!strncmp(text, "write-eio", 9)) return EIO;
    if (!strncmp(text, "write-enospc", 12)) return ENOSPC;
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd) {
    int fault = sync_fault(fd);
    if (fault) { errno = fault; return -1; }
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    int fault = sync_fault(fd);
    if (fault) { errno = fault; return -1; }
    return REAL(fdatasync)(fd);
}

ssize_t write(int fd, const void *data, size_t size) {
    int fault = write_fault(fd);
    if (fault) { errno = fault; return -1; }
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    int fault = write_fault(fd);
    if (fault) { errno = fault; return -1; }
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    int fault = write_fault(fd);
    if (fault) { errno = fault; return -1; }
    return REAL(pwrite64)(fd, data, size, at);
}
