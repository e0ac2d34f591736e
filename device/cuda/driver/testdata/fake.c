// A fake of libcuda, and of the few functions of NVML, cublasLt and NCCL that the tests of package driver call. Device
// memory is host memory, streams are synchronous. As in the driver, the current context belongs to the thread: a call
// from a thread without one is CUDA_ERROR_INVALID_CONTEXT. Variables of the environment inject failures:
//
//	FAKE_VERSION   what cuDriverGetVersion says
//	FAKE_INIT      what cuInit returns
//	FAKE_DEVICES   number of devices
//	FAKE_DENY      an attribute that cannot be asked
//	FAKE_CC        compute capability times 10
//	FAKE_LOAD      what cuModuleLoadDataEx returns
//	FAKE_RETAIN    what cuDevicePrimaryCtxRetain returns
//	FAKE_SYNC      what cuStreamSynchronize returns
//	FAKE_SIGNALS   cuInit installs handlers of SIGINT and SIGTERM without SA_ONSTACK
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static int env(const char *name, int otherwise) {
  const char *v = getenv(name);
  return v && *v ? atoi(v) : otherwise;
}

static void handler(int s) {
  (void)s;
  static const char text[] = "the library's handler ran\n";
  fwrite(text, 1, sizeof text - 1, stderr);
}

static __thread void *current;
static int retained;
#define NEED_CONTEXT if (!current) return 201

int cuInit(unsigned flags) {
  if (env("FAKE_SIGNALS", 0)) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = handler;
    sigaction(SIGINT, &a, 0);
    sigaction(SIGTERM, &a, 0);
  }
  return flags ? 1 : env("FAKE_INIT", 0);
}
int cuDriverGetVersion(int *v) { *v = env("FAKE_VERSION", 13000); return 0; }
int cuGetErrorName(int code, const char **p) {
  *p = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : 0;
  return *p ? 0 : 1;
}
int cuGetErrorString(int code, const char **p) { *p = code == 2 ? "out of memory" : 0; return *p ? 0 : 1; }

int cuDeviceGetCount(int *n) { *n = env("FAKE_DEVICES", 2); return 0; }
int cuDeviceGet(int *dev, int i) { *dev = 40 + i; return 0; } // handles need not be indices
int cuDeviceGetName(char *s, int n, int dev) { snprintf(s, n, "Fake %d", dev - 40); return 0; }
int cuDeviceGetUuid(unsigned char *u, int dev) {
  for (int i = 0; i < 16; i++) u[i] = i * 17;
  u[15] = dev - 40;
  return 0;
}
int cuDeviceGetPCIBusId(char *s, int n, int dev) { snprintf(s, n, "0000:%02x:00.0", dev); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int dev) { (void)dev; *n = (size_t)150 << 30; return 0; }
int cuDeviceGetAttribute(int *v, int attr, int dev) {
  if (dev < 40) return 101;
  if (attr == env("FAKE_DENY", -1)) return 1;
  int cc = env("FAKE_CC", 90);
  *v = attr == 75 ? cc / 10 : attr == 76 ? cc % 10 : 1000 + attr;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **ctx, int dev) {
  int code = env("FAKE_RETAIN", 0);
  if (code) return code;
  retained++;
  *ctx = (void *)(uintptr_t)(0xc0de00 + dev);
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int dev) { (void)dev; retained--; return retained < 0 ? 1 : 0; }
int cuCtxSetCurrent(void *ctx) { current = ctx; return 0; }
int fakeRetained(void) { return retained; }

int cuMemAlloc_v2(uint64_t *p, size_t n) {
  NEED_CONTEXT;
  if (!n) return 1;
  if (n >> 40) return 2;
  char *m = malloc(n + 8);
  memcpy(m, "device ", 8);
  *p = (uintptr_t)m + 8;
  return 0;
}
int cuMemAllocManaged(uint64_t *p, size_t n, unsigned flags) {
  if (flags != 1) return 1;
  int r = cuMemAlloc_v2(p, n);
  if (!r) memcpy((char *)*p - 8, "managed", 8);
  return r;
}
int cuMemFree_v2(uint64_t p) { NEED_CONTEXT; free((char *)p - 8); return 0; }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) { NEED_CONTEXT; *p = malloc(n); return flags == 1 ? 0 : 1; }
int cuMemFreeHost(void *p) { NEED_CONTEXT; free(p); return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { NEED_CONTEXT; *f = (size_t)140 << 30; *t = (size_t)150 << 30; return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t d, const void *s, size_t n, void *stream) { (void)stream; NEED_CONTEXT; memcpy((void *)d, s, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *d, uint64_t s, size_t n, void *stream) { (void)stream; NEED_CONTEXT; memcpy(d, (void *)s, n); return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t d, uint64_t s, size_t n, void *stream) { (void)stream; NEED_CONTEXT; memmove((void *)d, (void *)s, n); return 0; }

int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, void *stream) { (void)stream; NEED_CONTEXT; memset((void *)p, v, n); return 0; }
static uintptr_t handles = 0x1000;
static double now;
typedef struct { int timed, recorded; double at; } Event;
int cuStreamCreate(void **s, unsigned flags) { NEED_CONTEXT; *s = (void *)++handles; return flags == 1 ? 0 : 1; }
int cuStreamCreateWithPriority(void **s, unsigned flags, int priority) { NEED_CONTEXT; *s = (void *)++handles; return flags == 1 && priority <= 0 ? 0 : 1; }
int cuStreamDestroy_v2(void *s) { NEED_CONTEXT; return s ? 0 : 400; }
int cuStreamSynchronize(void *s) { (void)s; NEED_CONTEXT; return env("FAKE_SYNC", 0); }
int cuEventCreate(Event **e, unsigned flags) { NEED_CONTEXT; *e = calloc(1, sizeof **e); (*e)->timed = !(flags & 2); return 0; }
int cuEventDestroy_v2(Event *e) { NEED_CONTEXT; free(e); return 0; }
int cuEventRecord(Event *e, void *s) { (void)s; NEED_CONTEXT; e->recorded = 1; e->at = now += 1.5; return 0; }
int cuStreamWaitEvent(void *s, Event *e, unsigned flags) { (void)s; (void)e; NEED_CONTEXT; return flags ? 1 : 0; }
int cuEventSynchronize(Event *e) { (void)e; NEED_CONTEXT; return 0; }
int cuEventElapsedTime(float *ms, Event *a, Event *b) {
  NEED_CONTEXT;
  if (!a->timed || !b->timed) return 400;
  *ms = b->at - a->at;
  return 0;
}

int cuModuleLoadDataEx(void **m, const char *ptx, unsigned n, const int *options, void **values) {
  NEED_CONTEXT;
  if (n != 4 || options[0] != 3 || options[1] != 4 || options[2] != 5 || options[3] != 6) return 1;
  int code = env("FAKE_LOAD", 0);
  if (code) snprintf(values[2], (size_t)values[3], "line 7: what is this");
  *m = strdup(ptx);
  return code;
}
int cuModuleGetFunction(void **f, void *m, const char *name) {
  NEED_CONTEXT;
  if (!strstr(m, name)) return 500;
  *f = (void *)0xf00;
  return 0;
}
static int loaded;
int cuFuncLoad(void *f) { NEED_CONTEXT; loaded = f == (void *)0xf00; return loaded ? 0 : 400; }
static int maxShared;
int cuFuncSetAttribute(void *f, int attr, int v) { NEED_CONTEXT; if (f != (void *)0xf00 || attr != 8) return 1; maxShared = v; return 0; }
int cuFuncGetAttribute(int *v, int attr, void *f) { NEED_CONTEXT; if (f != (void *)0xf00) return 1; *v = attr * 11; return 0; }

// The one kernel: writes what it was launched with.
typedef struct { uint64_t to; double factor; int32_t a; } Args;
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
  NEED_CONTEXT;
  if (f != (void *)0xf00 || !loaded || by != 1 || bz != 1 || extra || (int)shared > maxShared) return 1;
  const Args *a = params[0];
  double out[] = {gx, gy, gz, bx, shared, (uintptr_t)stream, a->a * a->factor};
  memcpy((void *)a->to, out, sizeof out);
  return 0;
}

// CUlaunchConfig with one attribute, the extents of a cluster.
typedef struct { uint32_t id, pad, x, y, z, rest[13]; } Attribute;
typedef struct { uint32_t gx, gy, gz, bx, by, bz, shared; void *stream; Attribute *attributes; uint32_t n; } Config;
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
  if (c->n != 1 || c->attributes->id != 4 || c->attributes->y != 1 || c->attributes->z != 1) return 1;
  int code = cuLaunchKernel(f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, params, extra);
  if (!code) ((double *)((const Args *)params[0])->to)[7] = c->attributes->x;
  return code;
}
// The map of the fake is its numbers.
int cuTensorMapEncodeTiled(void *map, unsigned type, unsigned rank, void *p, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
    const uint32_t *steps, unsigned interleave, unsigned pattern, unsigned l2, unsigned fill) {
  uint64_t out[16] = {type, rank, (uintptr_t)p, dims[0], dims[1], strides[0], box[0], box[1], steps[0], steps[1], interleave, pattern, l2, fill};
  if ((uintptr_t)map % 64 || (uintptr_t)p % 16 || strides[0] % 16) return 1;
  memcpy(map, out, sizeof out);
  return 0;
}

// NVML.
int nvmlInit_v2(void) { return env("FAKE_NVML", 0); }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.82.07"); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(uintptr_t)(0x500 + i); return i < 2 ? 0 : 2; }
int nvmlDeviceGetHandleByUUID(const char *s, void **d) {
  *d = (void *)(uintptr_t)(0x500 + strtol(s + strlen(s) - 2, 0, 16));
  return strcmp(s, "GPU-00112233-4455-6677-8899-aabbccddee01") ? 6 : 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *s, void **d) { *d = (void *)0x500; return strcmp(s, "0000:28:00.0") ? 6 : 0; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *v) { (void)d; v[0] = 97; v[1] = 41; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, uint64_t *v) { (void)d; v[0] = 300; v[1] = 100; v[2] = 200; return d == (void *)0x500 ? 3 : 0; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) { (void)d; *v = 612500; return 0; }
int nvmlDeviceGetClockInfo(void *d, int what, unsigned *v) { (void)d; *v = 1980; return what == 1 ? 0 : 2; }
int nvmlDeviceGetTemperature(void *d, int what, unsigned *v) { (void)d; *v = 64; return what ? 2 : 0; }

// What a survey asks of the others.
size_t cublasLtGetVersion(void) { return 130002; }
int ncclGetVersion(int *v) { *v = 22703; return 0; }
