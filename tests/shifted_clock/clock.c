/* Shifts the wall clock of a program by the seconds in the file that PYTHON_TEST_CLOCK names, which is read each
   second. The monotonic clock stays, as it does on a machine whose clock is set, so that programs wait as long as they
   ask for.

   With PYTHON_TEST_CLOCK_FILES=1 the times of files are shifted as well, as long as the file keeps its first number.
   They come from the kernel, whose clock is the right one, and a new file would else be as old as the shift.

   cc -shared -fPIC -o clock.so clock.c -ldl, then LD_PRELOAD=clock.so */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name, ...)                                                                                                \
    static int (*real)(__VA_ARGS__);                                                                                   \
    if (!real) real = (int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static int read_clock(clockid_t clock, struct timespec *time) {
    REAL("clock_gettime", clockid_t, struct timespec *);
    return real(clock, time);
}

static long shift(void) {
    static long looked = -1, seconds;
    struct timespec now;
    read_clock(CLOCK_MONOTONIC, &now);
    if (now.tv_sec != looked) {
        char text[32] = "";
        const char *name = getenv("PYTHON_TEST_CLOCK");
        int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        looked = now.tv_sec;
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) seconds = atol(text);
            close(file);
        }
    }
    return seconds;
}

static long shift_of_files(void) {
    const char *files = getenv("PYTHON_TEST_CLOCK_FILES");
    return files && *files == '1' ? shift() : 0;
}

static int shifted(int failed, struct stat *status) {
    if (!failed) {
        long seconds = shift_of_files();
        status->st_atim.tv_sec += seconds;
        status->st_mtim.tv_sec += seconds;
        status->st_ctim.tv_sec += seconds;
    }
    return failed;
}

/* The times in the clock of the kernel, in `back`. Null, which stands for now, stays null. */
static const struct timespec *shifted_back(const struct timespec times[2], struct timespec back[2]) {
    if (!times) return NULL;
    for (int i = 0; i < 2; i++) {
        back[i] = times[i];
        if (times[i].tv_nsec != UTIME_NOW && times[i].tv_nsec != UTIME_OMIT) back[i].tv_sec -= shift_of_files();
    }
    return back;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = read_clock(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

/* Programs with large files call the second name. Both have the same struct on a machine of 64 bits. */
#define BOTH(define) define() define(64)
#define STAT(bits)                                                                                                     \
    int stat##bits(const char *restrict path, struct stat##bits *restrict status) {                                    \
        REAL("stat" #bits, const char *, struct stat##bits *);                                                         \
        return shifted(real(path, status), (struct stat *)status);                                                     \
    }                                                                                                                  \
    int lstat##bits(const char *restrict path, struct stat##bits *restrict status) {                                   \
        REAL("lstat" #bits, const char *, struct stat##bits *);                                                        \
        return shifted(real(path, status), (struct stat *)status);                                                     \
    }                                                                                                                  \
    int fstat##bits(int file, struct stat##bits *status) {                                                             \
        REAL("fstat" #bits, int, struct stat##bits *);                                                                 \
        return shifted(real(file, status), (struct stat *)status);                                                     \
    }                                                                                                                  \
    int fstatat##bits(int folder, const char *restrict path, struct stat##bits *restrict status, int flags) {          \
        REAL("fstatat" #bits, int, const char *, struct stat##bits *, int);                                            \
        return shifted(real(folder, path, status, flags), (struct stat *)status);                                      \
    }
BOTH(STAT)

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    struct timespec back[2];
    REAL("utimensat", int, const char *, const struct timespec *, int);
    return real(folder, path, shifted_back(times, back), flags);
}

int futimens(int file, const struct timespec times[2]) {
    struct timespec back[2];
    REAL("futimens", int, const struct timespec *);
    return real(file, shifted_back(times, back));
}
