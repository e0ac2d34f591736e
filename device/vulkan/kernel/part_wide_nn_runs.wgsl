// The right tile of w [k, n] in a form of blocks: two lanes share a run of 16 columns of a step of k.

fn fetch_right(lane: u32, j0: u32, k0: u32) -> Eight {
  let k = k0 + lane / 16u;
  let j = j0 + lane % 16u / 2u * 16u;
  let h = lane % 2u * 8u;
  var v = Eight();
  if (k < args.k && j + h < args.n) {
    let r = values(k, j);
    v.a = vec4<f32>(value(r, h), value(r, h + 1u), value(r, h + 2u), value(r, h + 3u));
    v.b = vec4<f32>(value(r, h + 4u), value(r, h + 5u), value(r, h + 6u), value(r, h + 7u));
  }
  return v;
}

fn put_right(lane: u32, v: Eight) {
  let at = PITCH * (lane / 16u) + lane % 16u * 2u;
  right[at] = v.a;
  right[at + 1u] = v.b;
}
