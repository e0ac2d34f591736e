/* Times OpenBLAS sgemm at the shapes of BenchmarkShapes in device/cpu/gemm, in GFLOP/s.
 *
 *   cc -O2 -o /tmp/openblas tools/openblas/bench.c -lopenblas && OPENBLAS_NUM_THREADS=1 /tmp/openblas
 *
 * Libraries older than a processor take its AVX2 kernels; OPENBLAS_CORETYPE=SkylakeX makes them use AVX-512.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern char *openblas_get_config(void);
extern char *openblas_get_corename(void);

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

static float *draw(size_t n) {
	float *p = aligned_alloc(64, (n * sizeof *p + 63) / 64 * 64);
	for (size_t i = 0; i < n; i++)
		p[i] = (float)rand() / RAND_MAX - 0.5f;
	return p;
}

/* The best of several rounds: others may be using the machine. */
static void bench(const char *form, int m, int n, int k) {
	int ta = form[0] == 'T', tb = form[1] == 'T';
	float *a = draw((size_t)m * k), *b = draw((size_t)n * k), *c = draw((size_t)m * n);
	double flops = 2.0 * m * n * k, best = 0;
	int repeat = 1 + 5e8 / flops;
	for (int round = 0; round < 15; round++) {
		double start = now();
		for (int r = 0; r < repeat; r++)
			cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, 1,
			            a, ta ? m : k, b, tb ? k : n, 0, c, n);
		double rate = repeat * flops / (now() - start) / 1e9;
		if (rate > best)
			best = rate;
	}
	printf("%s m=%d n=%d k=%d: %.1f GFLOP/s\n", form, m, n, k, best);
	free(a), free(b), free(c);
}

int main(void) {
	printf("%s, core %s\n", openblas_get_config(), openblas_get_corename());
	static const char *forms[] = {"NT", "NN", "TN"};
	static const int layers[][2] = {{256, 512}, {256, 256}, {256, 1536}, {768, 256},
	                                {128, 256}, {128, 128}, {128, 768}, {384, 128}};
	static const int heads[][2] = {{256, 4096}, {128, 4096}};
	for (int f = 0; f < 3; f++) {
		bench(forms[f], 512, 512, 512);
		bench(forms[f], 1024, 1024, 1024);
	}
	/* layers: in features, out features; 2048 rows forward (NT), input gradient (NN), weight gradient (TN) */
	for (int i = 0; i < 8; i++) {
		int in = layers[i][0], out = layers[i][1];
		bench("NT", 2048, out, in), bench("NN", 2048, in, out), bench("TN", out, in, 2048);
	}
	for (int i = 0; i < 2; i++) {
		int in = heads[i][0], out = heads[i][1];
		bench("NT", 512, out, in), bench("NN", 512, in, out), bench("TN", out, in, 512);
	}
	bench("NT", 1, 4096, 256);
	bench("NT", 1, 4096, 4096);
	return 0;
}
