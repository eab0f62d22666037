/* The engines of the router's benchmark: one process, one epoll loop, many listening addresses.

   router_worker ADDRESS COUNT PORT: COUNT engines at ADDRESS, the next address, and so on. An engine answers its probes,
   its loads, and a chat completion at once: whole, or as a stream whose chunks come every 20 ms. A chunk begins with the
   time at which it was written, so that whoever reads it knows how long it was under way. No model, no queue, no body
   is looked at beyond `"stream":true` and `"max_tokens":N`: it must never be what is measured. Kept out of Python
   because a request costs it 5 us, a Python server ten times that on the core that the load generator shares. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 16384, MOST_BODY = 8 << 20, READ = 256 << 10, CHUNK_US = 20000 };

struct connection {
  int fd, engine, chunks, sent, streaming;
  char *in;
  size_t used, room;
  int64_t due_us;
};

static struct connection *connections[MOST_CONNECTIONS];
static int running[256], listeners[256], count, poll_fd;

static int64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void hang_up(struct connection *c) {
  if (c->streaming) running[c->engine]--;
  connections[c->fd] = NULL;
  close(c->fd);
  free(c->in);
  free(c);
}

/* Small answers fit the socket's buffer; a reader that does not read is hung up on. */
static int put(struct connection *c, const char *text, size_t length) {
  return send(c->fd, text, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length ? 0 : -1;
}

static int answer(struct connection *c, const char *body) {
  char text[4096];
  int length = snprintf(text, sizeof text,
                        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
                        "content-length: %zu\r\n\r\n%s", strlen(body), body);
  return put(c, text, length);
}

static int loads(struct connection *c) {
  char body[2048];
  int busy = running[c->engine];
  snprintf(body, sizeof body,
           "{\"timestamp\":\"2026-01-01T00:00:00.000000+00:00\",\"version\":\"0.5.23\",\"accelerator\":\"none\","
           "\"num_accelerators\":1,\"loads\":[{\"timestamp\":%.3f,\"dp_rank\":0,\"num_running_reqs\":%d,"
           "\"num_waiting_reqs\":0,\"num_waiting_uncached_tokens\":0,\"num_used_tokens\":%d,\"num_total_tokens\":%d,"
           "\"num_active_tokens\":%d,\"num_prealloc_ready_tokens\":0,\"max_total_num_tokens\":3000000,"
           "\"max_running_requests\":64,\"token_usage\":%.4f,\"gen_throughput\":0.0,\"cache_hit_rate\":0.0,"
           "\"utilization\":0.0,\"total_prefill_uncached_tokens\":1000000,\"total_prefill_busy_us\":100000000,"
           "\"decode_moments\":null}]}",
           (double)time(NULL), busy, busy * 1000, busy * 1000, busy * 1000, busy / 3000.0);
  return answer(c, body);
}

#define CHUNK_HEAD "{\"id\":\"0a8f1c7e5d2b4a5c9e3f7d6b8a9c0e1f\",\"object\":\"chat.completion.chunk\"," \
                   "\"created\":1790000000,\"model\":\"bench\",\"choices\":["
#define USAGE "\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d," \
              "\"prompt_tokens_details\":{\"cached_tokens\":%d}}"

static int put_event(struct connection *c, const char *event, const char *end) {
  char text[2048];
  return put(c, text, snprintf(text, sizeof text, "%zx\r\n%s\r\n%s", strlen(event), event, end));
}

static int next_chunk(struct connection *c) {
  char event[1024];
  c->due_us += CHUNK_US;
  if (c->sent++ < c->chunks) {
    snprintf(event, sizeof event,
             "data: " CHUNK_HEAD "{\"index\":0,\"delta\":{\"content\":\"%016lld some words of an answer\"},"
             "\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}]}\n\n", (long long)now_us());
    return put_event(c, event, "");
  }
  snprintf(event, sizeof event,
           "data: " CHUNK_HEAD "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
           "\"finish_reason\":\"tool_calls\",\"matched_stop\":null}]}\n\n"
           "data: " CHUNK_HEAD "]," USAGE "}\n\ndata: [DONE]\n\n", 100000, 100000 + c->chunks, c->chunks, 99000);
  c->streaming = 0;
  running[c->engine]--;
  return put_event(c, event, "0\r\n\r\n");
}

static int complete(struct connection *c, const char *body, size_t length) {
  if (memmem(body, length, "\"stream\":true", 13) == NULL) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"id\":\"0a8f1c7e5d2b4a5c9e3f7d6b8a9c0e1f\",\"object\":\"chat.completion\",\"created\":1790000000,"
             "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"done\","
             "\"reasoning_content\":null,\"tool_calls\":null},\"logprobs\":null,\"finish_reason\":\"stop\","
             "\"matched_stop\":1}]," USAGE ",\"metadata\":{\"weight_version\":\"default\"}}", 1000, 1020, 20, 900);
    return answer(c, text);
  }
  const char *tokens = memmem(body, length, "\"max_tokens\":", 13);
  const char *head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                     "transfer-encoding: chunked\r\n\r\n";
  c->chunks = tokens ? atoi(tokens + 13) : 100;
  c->sent = 0;
  c->streaming = 1;
  /* Streams that begin together do not go on in step. */
  c->due_us = now_us() - c->fd * 7919 % CHUNK_US;
  running[c->engine]++;
  return put(c, head, strlen(head)) || next_chunk(c);
}

static int serve(struct connection *c, const char *body, size_t length) {
  if (!strncmp(c->in, "POST /v1/chat/completions", 25)) return complete(c, body, length);
  if (!strncmp(c->in, "GET /v1/loads", 13) || !strncmp(c->in, "GET /get_load", 13)) return loads(c);
  if (!strncmp(c->in, "GET /v1/models", 14))
    return answer(c, "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"max_model_len\":262144}]}");
  return answer(c, "{\"status\":\"ready\",\"model_path\":\"bench\",\"served_model_name\":\"bench\",\"is_generation\":true,"
                   "\"dp_size\":1,\"version\":\"0.5.23\",\"max_total_num_tokens\":3000000}");
}

/* Serve every whole request of the input; -1 to hang up. */
static int take(struct connection *c) {
  while (c->used && !c->streaming) {
    char *end = memmem(c->in, c->used, "\r\n\r\n", 4);
    if (!end) return c->used > 65536 ? -1 : 0;
    *end = 0;
    char *field = strcasestr(c->in, "\r\ncontent-length:");
    size_t head = end + 4 - c->in, body = field ? strtoul(field + 17, NULL, 10) : 0;
    if (strcasestr(c->in, "\r\ntransfer-encoding:") || body > MOST_BODY) return -1;
    if (c->used < head + body) {
      *end = '\r';
      return 0;
    }
    if (serve(c, c->in + head, body)) return -1;
    c->used -= head + body;
    memmove(c->in, c->in + head + body, c->used);
  }
  return 0;
}

static void readable(struct connection *c) {
  for (;;) {
    if (c->room - c->used < READ) c->in = realloc(c->in, c->room = c->used + 2 * READ);
    ssize_t got = recv(c->fd, c->in + c->used, READ, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return hang_up(c);
    c->used += got;
    if (take(c)) return hang_up(c);
    if (got < READ) return;
  }
}

static void accept_on(int engine) {
  int one = 1, fd = accept4(listeners[engine], NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0) return;
  if (fd >= MOST_CONNECTIONS) {
    close(fd);
    return;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct connection *c = connections[fd] = calloc(1, sizeof *c);
  c->fd = fd;
  c->engine = engine;
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.u32 = fd});
}

static void tick(int timer) {
  uint64_t passed;
  if (read(timer, &passed, sizeof passed) < 0) return;
  int64_t now = now_us();
  for (int fd = 0; fd < MOST_CONNECTIONS; fd++) {
    struct connection *c = connections[fd];
    if (c && c->streaming && c->due_us <= now && (next_chunk(c) || take(c))) hang_up(c);
  }
}

static int listen_at(uint32_t address, int port) {
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, (struct sockaddr *)&to, sizeof to) || listen(fd, 1024)) {
    perror("router_worker: cannot listen");
    exit(1);
  }
  return fd;
}

int main(int argc, char **argv) {
  if (argc != 4 || (count = atoi(argv[2])) < 1 || count > 256) {
    fprintf(stderr, "usage: router_worker ADDRESS COUNT PORT (COUNT at most 256)\n");
    return 2;
  }
  poll_fd = epoll_create1(EPOLL_CLOEXEC);
  for (int i = 0; i < count; i++) {
    listeners[i] = listen_at(ntohl(inet_addr(argv[1])) + i, atoi(argv[3]));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = MOST_CONNECTIONS + 1 + i};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listeners[i], &event);
  }
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  struct itimerspec every = {{0, 1000000}, {0, 1000000}};
  timerfd_settime(timer, 0, &every, NULL);
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer, &(struct epoll_event){.events = EPOLLIN, .data.u32 = MOST_CONNECTIONS});
  puts("listening");
  fflush(stdout);
  for (;;) {
    struct epoll_event events[256];
    int n = epoll_wait(poll_fd, events, 256, -1);
    for (int i = 0; i < n; i++) {
      uint32_t what = events[i].data.u32;
      if (what == MOST_CONNECTIONS) tick(timer);
      else if (what > MOST_CONNECTIONS) accept_on(what - MOST_CONNECTIONS - 1);
      else if (connections[what]) readable(connections[what]);
    }
  }
}
