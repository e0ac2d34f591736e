//apr:kernel y:rw x:r w:r:u32 bias:r | m:u32 n:u32 k:u32 depth:u32 add:u32 biased:u32
//apr:lanes 256
//apr:include wide wide_nn_f32

// y = xᵀ·w, or added to y. x [k, m], w [k, n], y [m, n].

fn left_value(k: u32, row: u32) -> f32 {
  return select(0.0, x[args.x_at + min(k, args.k - 1u) * args.x_row + min(row, args.m - 1u)], k < args.k);
}

fn fetch_left(lane: u32, i0: u32, k0: u32) -> Eight {
  let i = i0 + lane % 128u;
  let k = k0 + lane / 128u;
  return Eight(vec4<f32>(left_value(k, i), left_value(k + 2u, i), left_value(k + 4u, i), left_value(k + 6u, i)),
    vec4<f32>(left_value(k + 8u, i), left_value(k + 10u, i), left_value(k + 12u, i), left_value(k + 14u, i)));
}

fn put_left(lane: u32, v: Eight) {
  let i = lane % 128u;
  let at = PITCH * (lane / 128u) + i / 4u;
  left[at][i % 4u] = v.a.x;
  left[at + 2u * PITCH][i % 4u] = v.a.y;
  left[at + 4u * PITCH][i % 4u] = v.a.z;
  left[at + 6u * PITCH][i % 4u] = v.a.w;
  left[at + 8u * PITCH][i % 4u] = v.b.x;
  left[at + 10u * PITCH][i % 4u] = v.b.y;
  left[at + 12u * PITCH][i % 4u] = v.b.z;
  left[at + 14u * PITCH][i % 4u] = v.b.w;
}

fn run(group: u32, lane: u32) { sum_wide(group, lane); }
