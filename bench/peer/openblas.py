"""float32 products of numpy's OpenBLAS on one thread, in GFLOP/s: the best of several rounds. usage: OPENBLAS_NUM_THREADS=1 openblas.py"""
import time, numpy as np, threadpoolctl
for lib in threadpoolctl.threadpool_info(): print("RESULT", lib["internal_api"], lib["version"], lib.get("architecture"), "threads", lib["num_threads"])
for m, n, k in [(512, 512, 512), (1024, 1024, 1024), (2048, 512, 256), (2048, 256, 256), (2048, 1536, 256), (2048, 256, 768), (1024, 4096, 256), (2048, 768, 128), (1024, 4096, 128)]:
    a = np.random.rand(m, k).astype(np.float32); b = np.random.rand(n, k).astype(np.float32); c = np.empty((m, n), np.float32); best = 1e9
    for _ in range(30):
        t = time.perf_counter(); np.dot(a, b.T, out=c); best = min(best, time.perf_counter() - t)
    print("RESULT openblas NT m=%d n=%d k=%d: %.0f GFLOP/s" % (m, n, k, 2 * m * n * k / best / 1e9))
