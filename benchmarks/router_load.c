/* The load generator of the router's benchmark: one request text over and over, on many connections at once.

   router_load TARGET REQUEST CONNECTIONS SESSIONS SECONDS RATE WARM_S [LOG HOLD_MS REST]
     TARGET    ip:port, or the path of a unix socket
     REQUEST   file with a whole HTTP request; every @@@@@@@@ in it becomes a session's number, 8 digits
     SESSIONS  each connection has its own share of them, so that none has two requests at once
     SECONDS   how long requests begin (after WARM_S, in which they are not counted); those under way are waited for
     RATE      requests a second, sent when due whether or not earlier ones are answered; 0: the next one follows the answer
     LOG       for the picker alone: append Envoy's line for the answer's pick to this file, HOLD_MS after it:
               the pick, where it went, and REST
   Prints one JSON object. Warm-up ends and the count begins with a line "begin" on stdout, and "end" ends it, so that
   the caller can read CPU times at both. Chunks whose content begins with a time (router_worker.c) are timed too. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096, IN = 256 << 10, HOSTS = 64, GRACE_US = 60000000 };

struct connection {
  int fd, busy, counted;
  unsigned session;
  uint32_t wanted;
  char *request, in[IN + 1];
  size_t sent, used;
  int64_t due_us;
};
struct release {
  int64_t due_us;
  char pick[64], host[32];
};

static struct connection *all[MOST];
static int connections, failed, late, poll_fd, open_requests;
static unsigned sessions;
static size_t length, marks[HOSTS], mark_count;
static uint32_t *took, *transit;
static size_t took_n, transit_n, took_room = 1 << 23, done_n, chunks_n;
static struct release *releases;
static size_t release_first, release_next, release_room = 1 << 18;
static int64_t hold_us, end_us, begin_us;
static char first_failure[512];
static const char *log_path, *log_rest;

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void die(const char *what) {
  fprintf(stderr, "router_load: %s: %s\n", what, strerror(errno));
  exit(1);
}

static int dial(const char *target) {
  struct sockaddr_un local = {.sun_family = AF_UNIX};
  struct sockaddr_in remote = {.sin_family = AF_INET};
  const char *colon = strchr(target, ':');
  int one = 1, fd = socket(colon ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), failed_to;
  if (colon) {
    char host[64] = {0};
    memcpy(host, target, colon - target);
    remote.sin_port = htons(atoi(colon + 1));
    remote.sin_addr.s_addr = inet_addr(host);
    failed_to = connect(fd, (struct sockaddr *)&remote, sizeof remote);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  } else {
    strncpy(local.sun_path, target, sizeof local.sun_path - 1);
    failed_to = connect(fd, (struct sockaddr *)&local, sizeof local);
  }
  if (failed_to) die(target);
  return fd;
}

static void push(struct connection *c) {
  while (c->sent < length) {
    ssize_t n = send(c->fd, c->request + c->sent, length - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) die("the router hung up on a request");
    c->sent += n;
  }
  uint32_t wanted = c->sent < length ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (wanted == c->wanted) return;
  c->wanted = wanted;
  epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = wanted, .data.ptr = c});
}

static void start(struct connection *c, int64_t due_us) {
  char digits[9];
  snprintf(digits, sizeof digits, "%08u", c->session);
  for (size_t i = 0; i < mark_count; i++) memcpy(c->request + marks[i], digits, 8);
  unsigned own = (sessions + connections - 1) / connections;
  c->session = (c->session + connections) % (own * connections);
  c->sent = c->used = 0;
  c->busy = 1;
  c->due_us = due_us;
  c->counted = begin_us && due_us >= begin_us;
  open_requests++;
  push(c);
}

static const char *field(const char *head, const char *name, size_t *size) {
  const char *at = strcasestr(head, name);
  if (!at) return NULL;
  at += strlen(name);
  while (*at == ' ') at++;
  *size = strcspn(at, "\r,");
  return at;
}

static void remember(const char *head) {
  size_t pick_size, host_size;
  const char *pick = field(head, "\r\nx-sglpool-pick:", &pick_size);
  const char *host = field(head, "\r\nx-sglpool-destination:", &host_size);
  if (!pick || !host || release_next - release_first == release_room) {
    failed++;
    return;
  }
  struct release *r = &releases[release_next++ % release_room];
  r->due_us = now_us() + hold_us;
  snprintf(r->pick, sizeof r->pick, "%.*s", (int)pick_size, pick);
  snprintf(r->host, sizeof r->host, "%.*s", (int)host_size, host);
}

/* The picker may rename the file: it is opened anew each time, as a batch of a millisecond. */
static void release_due(int64_t now) {
  if (release_first == release_next || releases[release_first % release_room].due_us > now) return;
  char text[65536];
  size_t used = 0;
  while (release_first < release_next && releases[release_first % release_room].due_us <= now && used < 65000) {
    struct release *r = &releases[release_first++ % release_room];
    used += snprintf(text + used, sizeof text - used, "%s\t%s\t%s\n", r->pick, r->host, log_rest);
  }
  int fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, text, used) != (ssize_t)used) die(log_path);
  close(fd);
}

static void finished(struct connection *c, int status) {
  int64_t now = now_us();
  c->busy = 0;
  open_requests--;
  if (status != 200) {
    if (!failed++) snprintf(first_failure, sizeof first_failure, "%.300s", c->in);
  } else if (log_path) {
    remember(c->in);
  }
  if (begin_us && now <= end_us) done_n++;
  if (c->counted && took_n < took_room) took[took_n++] = now - c->due_us;
}

static void time_chunks(const char *text, const char *end) {
  int64_t now = now_us();
  while ((text = memmem(text, end - text, "\"content\":\"", 11)) != NULL) {
    text += 11;
    if (end - text < 16 || *text != '0') continue;
    if (!begin_us || now > end_us) continue;
    chunks_n++;
    if (transit_n < took_room) transit[transit_n++] = now - strtoll(text, NULL, 10);
  }
}

/* Whether the answer is whole. Of a stream, its head is kept, and what comes after the last whole event. */
static int whole(struct connection *c) {
  char *end = memmem(c->in, c->used, "\r\n\r\n", 4);
  if (!end) return 0;
  size_t head = end + 4 - c->in, size = 0;
  *end = 0;
  const char *given = field(c->in, "\r\ncontent-length:", &size);
  *end = '\r';
  if (given) return c->used >= head + strtoul(given, NULL, 10);
  char *from = c->in + head, *stop = c->in + c->used, *event = stop;
  while (event > from + 1 && !(event[-1] == '\n' && event[-2] == '\n')) event--;
  if (event <= from + 1) event = from;
  time_chunks(from, event);
  memmove(from, event, stop - event);
  c->used = head + (stop - event);
  return c->used - head >= 5 && !memcmp(c->in + c->used - 5, "0\r\n\r\n", 5);
}

static void readable(struct connection *c, int rate) {
  ssize_t got = recv(c->fd, c->in + c->used, IN - c->used, MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) {
    errno = got ? errno : ECONNRESET;
    die("the router hung up on an answer");
  }
  c->used += got;
  c->in[c->used] = 0;
  if (!c->busy || !whole(c)) return;
  finished(c, atoi(c->in + 9));
  int64_t now = now_us();
  if (!rate && now < end_us) start(c, now);
}

static void load_request(const char *path) {
  struct stat found;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &found)) die(path);
  length = found.st_size;
  char *text = malloc(length);
  if (read(fd, text, length) != (ssize_t)length) die(path);
  close(fd);
  for (char *at = text; (at = memmem(at, text + length - at, "@@@@@@@@", 8)) && mark_count < HOSTS; at += 8)
    marks[mark_count++] = at - text;
  for (int i = 0; i < connections; i++) memcpy(all[i]->request = malloc(length), text, length);
  free(text);
}

static void say(const char *word) {
  puts(word);
  fflush(stdout);
}

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static uint32_t at(uint32_t *sorted, size_t n, double percent) {
  size_t rank = n * percent / 100;
  return n ? sorted[rank < n ? rank : n - 1] : 0;
}

/* Send what is due; a request without a free connection waits for one, and counts as late. */
static void send_due(int64_t now, int64_t *next_us, int rate) {
  static int free_at;
  for (; *next_us <= now && *next_us < end_us; *next_us += 1000000 / rate) {
    int tried = 0;
    while (all[free_at]->busy && tried++ < connections) free_at = (free_at + 1) % connections;
    if (all[free_at]->busy) {
      late++;
      return;
    }
    start(all[free_at], *next_us);
    free_at = (free_at + 1) % connections;
  }
}

static void wait_for_events(int64_t limit_us, int rate) {
  struct epoll_event events[256];
  struct timespec limit = {0, (limit_us < 0 ? 0 : limit_us) * 1000};
  int n = epoll_pwait2(poll_fd, events, 256, &limit, NULL);
  for (int i = 0; i < n; i++) {
    struct connection *c = events[i].data.ptr;
    if (events[i].events & EPOLLOUT) push(c);
    if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c, rate);
  }
}

static void run(double seconds, double warm_s, int rate) {
  int64_t next_us = now_us(), warm_us = next_us + warm_s * 1e6;
  int ended = 0;
  end_us = warm_us + seconds * 1e6;
  for (int i = 0; !rate && i < connections; i++) start(all[i], now_us());
  for (int64_t now = next_us; now < end_us || open_requests || release_first < release_next; now = now_us()) {
    if (!begin_us && now >= warm_us) begin_us = now, say("begin");
    if (!ended && now >= end_us) ended = 1, say("end");
    if (now > end_us + GRACE_US) {
      errno = ETIMEDOUT;
      die("answers are missing");
    }
    if (rate) send_due(now, &next_us, rate);
    if (log_path) release_due(now);
    int64_t limit_us = rate || log_path ? 1000 : 10000;
    wait_for_events(rate && next_us < end_us && next_us - now < limit_us ? next_us - now : limit_us, rate);
  }
  if (!ended) say("end");
}

static void report(void) {
  qsort(took, took_n, sizeof *took, compare);
  qsort(transit, transit_n, sizeof *transit, compare);
  for (char *c = first_failure; *c; c++)
    if (*c == '"' || *c == '\\' || *c < 32) *c = ' ';
  printf("{\"requests\":%zu,\"failed\":%d,\"late\":%d,\"chunks\":%zu,\"p50_us\":%u,\"p99_us\":%u,\"p999_us\":%u,"
         "\"max_us\":%u,\"chunk_p50_us\":%u,\"chunk_p99_us\":%u,\"failure\":\"%s\"}\n",
         done_n, failed, late, chunks_n, at(took, took_n, 50), at(took, took_n, 99), at(took, took_n, 99.9),
         at(took, took_n, 100), at(transit, transit_n, 50), at(transit, transit_n, 99), first_failure);
}

int main(int argc, char **argv) {
  if (argc != 8 && argc != 11) {
    fprintf(stderr, "usage: router_load TARGET REQUEST CONNECTIONS SESSIONS SECONDS RATE WARM_S [LOG HOLD_MS REST]\n");
    return 2;
  }
  connections = atoi(argv[3]);
  sessions = atoi(argv[4]);
  if (argc == 11) log_path = argv[8], hold_us = atoi(argv[9]) * 1000, log_rest = argv[10];
  if (connections < 1 || connections > MOST) return 2;
  took = malloc(took_room * sizeof *took);
  transit = malloc(took_room * sizeof *transit);
  releases = calloc(release_room, sizeof *releases);
  poll_fd = epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < connections; i++) {
    struct connection *c = all[i] = calloc(1, sizeof *c);
    c->session = i;
    c->fd = dial(argv[1]);
    c->wanted = EPOLLIN;
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c});
  }
  load_request(argv[2]);
  run(atof(argv[5]), atof(argv[7]), atoi(argv[6]));
  report();
  return 0;
}
