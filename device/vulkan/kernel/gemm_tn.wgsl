//apr:kernel y:rw x:r w:r bias:r | m:u32 n:u32 k:u32 depth:u32 add:u32 biased:u32
//apr:include gemm

// y = xᵀ·w, or added to y. x [k, m], w [k, n], y [m, n].

fn load_left(lane: u32, i0: u32, k0: u32, depth: u32) {
  let col = i0 + lane % 4u * 16u;
  if (lane / 4u >= depth || col >= args.m) { return; }
  let at = args.x_at + (k0 + lane / 4u) * args.x_row + col;
  for (var i = 0u; i < min(16u, args.m - col); i++) { left[16u * lane + i] = x[at + i]; }
}

fn load_right(lane: u32, j0: u32, k0: u32, depth: u32) {
  let col = j0 + lane % 4u * 16u;
  if (lane / 4u >= depth || col >= args.n) { return; }
  let at = args.w_at + (k0 + lane / 4u) * args.w_row + col;
  for (var i = 0u; i < min(16u, args.n - col); i++) { right[16u * lane + i] = w[at + i]; }
}

fn run(group: u32, lane: u32) { sum_tiles(group, lane); }
