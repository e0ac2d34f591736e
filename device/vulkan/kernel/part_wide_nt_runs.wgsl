// The right tile of w [n, k] in a form of blocks: two lanes share a run of 16 steps of k of a row.

fn fetch_right(lane: u32, j0: u32, k0: u32) -> Eight {
  let h = lane % 2u * 8u;
  var v = Eight();
  if (k0 + h < args.k) {
    let r = values(min(j0 + lane / 2u, args.n - 1u), k0);
    v.a = vec4<f32>(value(r, h), value(r, h + 1u), value(r, h + 2u), value(r, h + 3u));
    v.b = vec4<f32>(value(r, h + 4u), value(r, h + 5u), value(r, h + 6u), value(r, h + 7u));
    let k = vec4<u32>(0u, 1u, 2u, 3u) + k0 + h;
    v.a = select(vec4<f32>(), v.a, k < vec4<u32>(args.k));
    v.b = select(vec4<f32>(), v.b, k + 4u < vec4<u32>(args.k));
  }
  return v;
}

fn put_right(lane: u32, v: Eight) {
  let j = lane / 2u;
  let at = PITCH * 8u * (lane % 2u) + j / 4u;
  right[at][j % 4u] = v.a.x;
  right[at + PITCH][j % 4u] = v.a.y;
  right[at + 2u * PITCH][j % 4u] = v.a.z;
  right[at + 3u * PITCH][j % 4u] = v.a.w;
  right[at + 4u * PITCH][j % 4u] = v.b.x;
  right[at + 5u * PITCH][j % 4u] = v.b.y;
  right[at + 6u * PITCH][j % 4u] = v.b.z;
  right[at + 7u * PITCH][j % 4u] = v.b.w;
}
