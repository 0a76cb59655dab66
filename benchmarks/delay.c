/* A network of some milliseconds, made on one machine: delay.py builds this where a compiler is.
 *
 *     delay HOST PORT MICROSECONDS
 *
 * listens on a port of 127.0.0.1, prints it, and forwards each connection to HOST:PORT. What the
 * client sends goes on at once; what the server sends is held back until its own time has come, so
 * a delay is no narrow pipe. Each line on standard input is answered by one line:
 *
 *     REPLIES TRIPS MEDIAN P99 PRIORITY
 *
 * replies that were sent on, round trips (the client spoke after the server had), by how many
 * microseconds replies were late, and 1 for a real-time priority. The end of standard input is the
 * end of the program.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#define SECOND 1000000000LL
#define PAIRS 256
#define CHUNK 65536
#define LONGEST 100000 /* microseconds of lateness that are told apart */

struct chunk {
    struct chunk *next;
    long long due;
    size_t length, sent;
    char bytes[];
};

/* One direction of a connection: what was read on one side, and is written on the other. */
struct way {
    struct chunk *first, *last;
    long long delay;
};

struct pair {
    int client, server, spoke; /* spoke: the server was the last to say something */
    int ended;                 /* one side has hung up: the rest is sent, then both are closed */
    struct way there, back;
};

static struct pair pairs[PAIRS];
static long long late[LONGEST + 1], replies, trips, delay;
static int real_time;

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void prepare(int end) {
    int one = 1;
    setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
}

/* A delay that depends on what else the machine does is none: this program comes first. */
static void come_first(void) {
    struct sched_param parameter = {.sched_priority = 10};
    setpriority(PRIO_PROCESS, 0, -10);
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1UL);
    real_time = sched_setscheduler(0, SCHED_FIFO, &parameter) == 0;
#else
    (void)parameter;
#endif
}

static int listening(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int end = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (end < 0 || bind(end, (struct sockaddr *)&address, sizeof address) || listen(end, PAIRS))
        fail("listen");
    getsockname(end, (struct sockaddr *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return end;
}

static void accept_one(int listener, const struct sockaddr_in *target) {
    int place = 0, client = accept(listener, NULL, NULL), server;
    if (client < 0)
        return;
    while (place < PAIRS && pairs[place].client >= 0)
        place++;
    server = socket(AF_INET, SOCK_STREAM, 0);
    if (place == PAIRS || client >= FD_SETSIZE || server < 0 || server >= FD_SETSIZE ||
        connect(server, (const struct sockaddr *)target, sizeof *target)) {
        close(client);
        if (server >= 0)
            close(server);
        return;
    }
    prepare(client);
    prepare(server);
    pairs[place] = (struct pair){.client = client, .server = server, .spoke = 1};
    pairs[place].back.delay = delay;
}

/* What is there on `from` is put at the end of the way; 0 when it was something. */
static int take(int from, struct way *way) {
    static char bytes[CHUNK];
    struct chunk *chunk;
    ssize_t length = recv(from, bytes, sizeof bytes, 0);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return 1;
    if (length <= 0)
        return -1;
    chunk = malloc(sizeof *chunk + (size_t)length);
    if (!chunk)
        fail("malloc");
    *chunk = (struct chunk){.due = now() + way->delay, .length = (size_t)length};
    memcpy(chunk->bytes, bytes, (size_t)length);
    if (way->last)
        way->last->next = chunk;
    else
        way->first = chunk;
    way->last = chunk;
    return 0;
}

static void drop_first(struct way *way) {
    struct chunk *chunk = way->first;
    way->first = chunk->next;
    if (!way->first)
        way->last = NULL;
    free(chunk);
}

static void note(long long nanoseconds) {
    long long micros = nanoseconds / 1000;
    late[micros > LONGEST ? LONGEST : micros]++;
    replies++;
}

/* Sends what is due; -1 when the other side is gone. */
static int give(int to, struct way *way) {
    while (way->first && way->first->due <= now()) {
        struct chunk *chunk = way->first;
        ssize_t length;
        if (way->delay && !chunk->sent)
            note(now() - chunk->due);
        length = send(to, chunk->bytes + chunk->sent, chunk->length - chunk->sent, MSG_NOSIGNAL);
        if (length < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -1;
        chunk->sent += (size_t)length;
        if (chunk->sent < chunk->length)
            return 0;
        drop_first(way);
    }
    return 0;
}

static void hang_up(struct pair *pair) {
    while (pair->there.first)
        drop_first(&pair->there);
    while (pair->back.first)
        drop_first(&pair->back);
    close(pair->client);
    close(pair->server);
    pair->client = -1;
}

static void serve(struct pair *pair, fd_set *readable) {
    if (!pair->ended && FD_ISSET(pair->client, readable)) {
        int found = take(pair->client, &pair->there);
        if (found < 0)
            pair->ended = 1;
        else if (!found && pair->spoke) {
            trips++;
            pair->spoke = 0;
        }
    }
    if (!pair->ended && FD_ISSET(pair->server, readable)) {
        int found = take(pair->server, &pair->back);
        if (found < 0)
            pair->ended = 1;
        else if (!found)
            pair->spoke = 1;
    }
    if (give(pair->server, &pair->there) || give(pair->client, &pair->back))
        hang_up(pair);
    else if (pair->ended && !pair->there.first && !pair->back.first)
        hang_up(pair);
}

static long long percentile(double part) {
    long long seen = 0, wanted = (long long)((double)replies * part);
    int micros = 0;
    while (micros < LONGEST && (seen += late[micros]) <= wanted)
        micros++;
    return replies ? micros : 0;
}

static void report(void) {
    char line[256];
    if (read(0, line, sizeof line) <= 0)
        exit(0);
    printf("%lld %lld %lld %lld %d\n", replies, trips, percentile(0.5), percentile(0.99), real_time);
    fflush(stdout);
}

/* Which ends to look at, and until when to wait. */
static int watched(int listener, fd_set *readable, fd_set *writable, long long *until) {
    int highest = listener;
    FD_ZERO(readable);
    FD_ZERO(writable);
    FD_SET(0, readable);
    FD_SET(listener, readable);
    *until = -1;
    for (struct pair *pair = pairs; pair < pairs + PAIRS; pair++) {
        if (pair->client < 0)
            continue;
        if (!pair->ended) {
            FD_SET(pair->client, readable);
            FD_SET(pair->server, readable);
        }
        if (pair->there.first)
            FD_SET(pair->server, writable);
        if (pair->back.first && pair->back.first->sent)
            FD_SET(pair->client, writable); /* half of it is gone: go on when there is room */
        else if (pair->back.first && (*until < 0 || pair->back.first->due < *until))
            *until = pair->back.first->due;
        highest = pair->client > highest ? pair->client : highest;
        highest = pair->server > highest ? pair->server : highest;
    }
    return highest;
}

int main(int count, char **given) {
    struct sockaddr_in target = {.sin_family = AF_INET};
    int listener;
    if (count != 4 || inet_pton(AF_INET, given[1], &target.sin_addr) != 1)
        return 2;
    target.sin_port = htons((unsigned short)atoi(given[2]));
    delay = atoll(given[3]) * 1000;
    for (int place = 0; place < PAIRS; place++)
        pairs[place].client = -1;
    signal(SIGPIPE, SIG_IGN);
    come_first();
    listener = listening();
    for (;;) {
        fd_set readable, writable;
        long long until, rest;
        int highest = watched(listener, &readable, &writable, &until);
        struct timespec wait;
        rest = until - now();
        rest = rest < 0 ? 0 : rest;
        wait = (struct timespec){.tv_sec = rest / SECOND, .tv_nsec = rest % SECOND};
        if (pselect(highest + 1, &readable, &writable, NULL, until < 0 ? NULL : &wait, NULL) < 0) {
            if (errno == EINTR)
                continue;
            fail("pselect");
        }
        for (struct pair *pair = pairs; pair < pairs + PAIRS; pair++)
            if (pair->client >= 0)
                serve(pair, &readable);
        if (FD_ISSET(listener, &readable))
            accept_one(listener, &target);
        if (FD_ISSET(0, &readable))
            report();
    }
}
