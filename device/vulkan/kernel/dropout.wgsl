//apr:kernel y:rw x:r | cols:u32 first_low:u32 first_high:u32 key_low:u32 key_high:u32 below:u32 scale:f32

// y = scale·x, or 0 where the upper half of number i+1 of splitmix64 from a key is below a threshold; i is the element's
// number in the whole tensor, of which first is that of the first one here. Numbers of 64 bits are pairs (low, high).

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide(a: u32, b: u32) -> vec2<u32> { // a·b
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let middle = (al * bl >> 16u) + (ah * bl & 0xffffu) + (al * bh & 0xffffu);
  return vec2<u32>(a * b, ah * bh + (ah * bl >> 16u) + (al * bh >> 16u) + (middle >> 16u));
}

fn mul64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = wide(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

fn fold(a: vec2<u32>, n: u32) -> vec2<u32> { // a ^ a>>n
  return vec2<u32>(a.x ^ (a.x >> n | a.y << (32u - n)), a.y ^ a.y >> n);
}

fn run(group: u32, lane: u32) {
  let chunks = (args.cols + 511u) / 512u;
  let r = group / chunks;
  let c0 = group % chunks * 512u;
  let row = add64(vec2<u32>(args.first_low, args.first_high), wide(r, args.cols));
  for (var c = c0 + lane; c < min(c0 + 512u, args.cols); c += 64u) {
    let i = add64(row, vec2<u32>(c + 1u, 0u));
    var z = add64(vec2<u32>(args.key_low, args.key_high), mul64(i, vec2<u32>(0x7f4a7c15u, 0x9e3779b9u)));
    z = mul64(fold(z, 30u), vec2<u32>(0x1ce4e5b9u, 0xbf58476du));
    z = mul64(fold(z, 27u), vec2<u32>(0x133111ebu, 0x94d049bbu));
    z = fold(z, 31u);
    var v = args.scale * x[args.x_at + r * args.x_row + c];
    if (z.y < args.below) { v = 0.0; }
    y[args.y_at + r * args.y_row + c] = v;
  }
}
