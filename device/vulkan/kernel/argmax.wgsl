//apr:kernel ids:rw:i32 best:rw x:r | n:u32 told:u32
//apr:include bits

// ids[row] = the first column of the largest number of x; NaN is skipped. best = the column and the value, which is NaN where the row has NaN
// or +∞. A group has a row.

var<workgroup> tops: array<f32, 64>;
var<workgroup> places: array<u32, 64>;
var<workgroup> marks: array<u32, 64>;

fn number(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) <= 0x7f800000u; }

fn run(group: u32, lane: u32) {
  var top = 0.0;
  var at = 0xffffffffu;
  var mark = 0u;
  for (var c = lane; c < args.n; c += 64u) {
    let v = x[args.x_at + group * args.x_row + c];
    if (spoiled(v)) { mark = 1u; }
    if (number(v) && (at == 0xffffffffu || v > top)) {
      top = v;
      at = c;
    }
  }
  tops[lane] = top;
  places[lane] = at;
  marks[lane] = mark;
  workgroupBarrier();
  if (lane != 0u) { return; }
  for (var i = 1u; i < 64u; i++) {
    mark |= marks[i];
    let other = places[i];
    if (other != 0xffffffffu && (at == 0xffffffffu || tops[i] > top || (tops[i] == top && other < at))) {
      top = tops[i];
      at = other;
    }
  }
  if (at == 0xffffffffu) { at = 0u; }
  ids[args.ids_at + group] = i32(at);
  if (args.told != 0u) {
    best[args.best_at + group * args.best_row] = f32(at);
    if (mark != 0u) { top = nan(); }
    best[args.best_at + group * args.best_row + 1u] = top;
  }
}
