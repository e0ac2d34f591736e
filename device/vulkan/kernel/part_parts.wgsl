// A product whose sums over k have parts: part p sums depth products, a multiple of 16, from k = p·depth on, and writes m rows
// of its own below those of the part before. Kernel add_parts adds them. A whole product is one part.

struct Part { tile: u32, first: u32, end: u32, row: u32 }

fn part_of(group: u32, tiles: u32) -> Part {
  let p = group / tiles;
  return Part(group % tiles, p * args.depth, min((p + 1u) * args.depth, args.k), p * args.m);
}

fn store(r: u32, s: u32, sum: f32) {
  let at = args.y_at + r * args.y_row + s;
  var v = sum;
  if (args.biased != 0u) { v += bias[args.bias_at + s]; }
  if (args.add != 0u) { v += y[at]; }
  y[at] = v;
}
