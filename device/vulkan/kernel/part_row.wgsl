// A product with one row of x: a team of lanes has four rows of w, so that what is read of x serves all of them, and each lane
// takes every piece of its rows whose number is its own modulo args.team, a power of two from 8 to 128. The sums of a team are
// added as a tree. row_sums, of each form, returns a lane's sums of the four rows from `row` on; vectors of four are of
// these rows. What is read of them at a time is read before it is used, so that a lane waits for memory once.
//
// Cards look up eight lanes' 16 bytes at a time, each line of 128 bytes for itself. Lanes of blocks are far apart in x, so that
// of eight lanes ABREAST, from as many teams, read the same of it.

var<workgroup> sums: array<vec4<f32>, 128>;

// The place of row i, or of the last one, in vectors of four words.
fn row_at(i: u32) -> u32 { return (args.w_at + min(i, args.n - 1u) * args.w_row) / 4u; }

fn rows_at(row: u32) -> vec4<u32> { return vec4<u32>(row_at(row), row_at(row + 1u), row_at(row + 2u), row_at(row + 3u)); }

fn added(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }

fn store(row: u32, sum: f32) {
  if (row >= args.n) { return; }
  var v = sum;
  if (args.biased != 0u) { v += bias[args.bias_at + row]; }
  if (args.add != 0u) { v += y[args.y_at + row]; }
  y[args.y_at + row] = v;
}

fn sum_row(group: u32, lane: u32) {
  let teams = 128u / args.team;
  let abreast = min(ABREAST, teams);
  let near = 8u / abreast; // members of a team in eight lanes
  let rest = args.team / near;
  let team = lane % 8u / near + abreast * (lane / 8u / rest);
  let place = lane % near + near * (lane / 8u % rest);
  let first = (group * teams + team) * 4u;
  var s = vec4<f32>();
  if (first < args.n) { s = row_sums(first, place); }
  sums[team * args.team + place] = s;
  workgroupBarrier();
  let member = lane % args.team;
  let row = (group * teams + lane / args.team) * 4u;
  for (var half = args.team / 2u; half > 0u; half = half / 2u) {
    if (member < half) { sums[lane] += sums[lane + half]; }
    workgroupBarrier();
  }
  if (member < 4u) { store(row + member, sums[lane - member][member]); }
}
