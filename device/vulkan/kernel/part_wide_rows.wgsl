// The left tile of x [m, k]: a lane has one step of k in every sixteenth row.

fn left_value(row: u32, k: u32) -> f32 {
  return select(0.0, x[args.x_at + min(row, args.m - 1u) * args.x_row + min(k, args.k - 1u)], k < args.k);
}

fn fetch_left(lane: u32, i0: u32, k0: u32) -> Eight {
  let i = i0 + lane / 16u;
  let k = k0 + lane % 16u;
  return Eight(
    vec4<f32>(left_value(i, k), left_value(i + 16u, k), left_value(i + 32u, k), left_value(i + 48u, k)),
    vec4<f32>(left_value(i + 64u, k), left_value(i + 80u, k), left_value(i + 96u, k), left_value(i + 112u, k)));
}

fn put_left(lane: u32, v: Eight) {
  let i = lane / 16u;
  let at = PITCH * (lane % 16u) + i / 4u;
  left[at][i % 4u] = v.a.x;
  left[at + 4u][i % 4u] = v.a.y;
  left[at + 8u][i % 4u] = v.a.z;
  left[at + 12u][i % 4u] = v.a.w;
  left[at + 16u][i % 4u] = v.b.x;
  left[at + 20u][i % 4u] = v.b.y;
  left[at + 24u][i % 4u] = v.b.z;
  left[at + 28u][i % 4u] = v.b.w;
}
