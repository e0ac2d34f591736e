// The right tile of w [n, k] in float32: a lane has one step of k in every sixteenth row.

fn right_value(row: u32, k: u32) -> f32 {
  return select(0.0, bitcast<f32>(w[args.w_at + min(row, args.n - 1u) * args.w_row + min(k, args.k - 1u)]), k < args.k);
}

fn fetch_right(lane: u32, j0: u32, k0: u32) -> Eight {
  let j = j0 + lane / 16u;
  let k = k0 + lane % 16u;
  return Eight(
    vec4<f32>(right_value(j, k), right_value(j + 16u, k), right_value(j + 32u, k), right_value(j + 48u, k)),
    vec4<f32>(right_value(j + 64u, k), right_value(j + 80u, k), right_value(j + 96u, k), right_value(j + 112u, k)));
}

fn put_right(lane: u32, v: Eight) {
  let j = lane / 16u;
  let at = PITCH * (lane % 16u) + j / 4u;
  right[at][j % 4u] = v.a.x;
  right[at + 4u][j % 4u] = v.a.y;
  right[at + 8u][j % 4u] = v.a.z;
  right[at + 12u][j % 4u] = v.a.w;
  right[at + 16u][j % 4u] = v.b.x;
  right[at + 20u][j % 4u] = v.b.y;
  right[at + 24u][j % 4u] = v.b.z;
  right[at + 28u][j % 4u] = v.b.w;
}
