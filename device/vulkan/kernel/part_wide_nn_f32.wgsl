// The right tile of w [k, n] in float32: a lane has a column in every other step of k.

fn right_value(k: u32, col: u32) -> f32 {
  return select(0.0, bitcast<f32>(w[args.w_at + min(k, args.k - 1u) * args.w_row + min(col, args.n - 1u)]), k < args.k);
}

fn fetch_right(lane: u32, j0: u32, k0: u32) -> Eight {
  let j = j0 + lane % 128u;
  let k = k0 + lane / 128u;
  return Eight(vec4<f32>(right_value(k, j), right_value(k + 2u, j), right_value(k + 4u, j), right_value(k + 6u, j)),
    vec4<f32>(right_value(k + 8u, j), right_value(k + 10u, j), right_value(k + 12u, j), right_value(k + 14u, j)));
}

fn put_right(lane: u32, v: Eight) {
  let j = lane % 128u;
  let at = PITCH * (lane / 128u) + j / 4u;
  right[at][j % 4u] = v.a.x;
  right[at + 2u * PITCH][j % 4u] = v.a.y;
  right[at + 4u * PITCH][j % 4u] = v.a.z;
  right[at + 6u * PITCH][j % 4u] = v.a.w;
  right[at + 8u * PITCH][j % 4u] = v.b.x;
  right[at + 10u * PITCH][j % 4u] = v.b.y;
  right[at + 12u * PITCH][j % 4u] = v.b.z;
  right[at + 14u * PITCH][j % 4u] = v.b.w;
}
