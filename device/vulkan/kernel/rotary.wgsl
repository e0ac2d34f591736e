//apr:kernel x:rw cosine:r sine:r factors:r positions:r:i32 faults:rw:u32 | half:u32 dim:u32 heads:u32 length:u32 offset:u32 sign:f32 placed:u32 scaled:u32 limit:u32
//apr:include faults

// Turns pairs (i, i+half) of each head by the angle of the row's position, and then multiplies all values of the head by the
// position's factor. A group has a row.
fn run(group: u32, lane: u32) {
  var p = i32(args.offset + group % args.length);
  if (args.placed != 0u) { p = positions[args.positions_at + group]; }
  if (p < 0 || u32(p) >= args.limit) { note(3u, p); return; }
  let angle = u32(p) * args.half;
  var f = 1.0;
  if (args.scaled != 0u) { f = factors[args.factors_at + u32(p)]; }
  let row = args.x_at + group * args.x_row;
  for (var n = lane; n < args.heads * args.half; n += 64u) {
    let i = n % args.half;
    let at = row + n / args.half * args.dim + i;
    let a = x[at];
    let b = x[at + args.half];
    let c = cosine[args.cosine_at + angle + i];
    let s = sine[args.sine_at + angle + i] * args.sign;
    x[at] = (a * c - b * s) * f;
    x[at + args.half] = (b * c + a * s) * f;
  }
  let rest = args.dim - 2u * args.half;
  if (args.scaled == 0u || rest == 0u) { return; }
  for (var n = lane; n < args.heads * rest; n += 64u) {
    let at = row + n / rest * args.dim + 2u * args.half + n % rest;
    x[at] = x[at] * f;
  }
}
