package cache

import (
	"path/filepath"

	"apr/internal/fault"
)

// Kept is a cache that one process makes and reads at the same time. It is made shard by shard: rows that are asked for
// and not there are told by Next, and given to Add, which writes a shard when it is whole. What a killed process had of
// a shard is made again.
type Kept struct {
	*Reader
	w       *Writer
	numbers map[Key]int // of each row among all
	open    int         // the shard that is being made; −1: none
	rows    [][]byte    // of it so far
	left    int         // shards that are not there
}

// Keep begins the cache of these rows in a folder, or goes on with one that was begun with the same header. keys are
// distinct, in the order in which shards hold them.
func Keep(dir string, h Header, keys []Key) (*Kept, error) {
	w, err := Create(dir, h, keys)
	if err != nil {
		return nil, err
	}
	k := &Kept{Reader: &Reader{Header: w.header, Dir: dir, places: map[Key]place{}}, w: w, numbers: make(map[Key]int,
		len(keys)), open: -1}
	for i, key := range keys {
		k.numbers[key] = i
	}
	for i, s := range w.shards {
		k.shards = append(k.shards, file{Name: s.Name, Rows: s.Hi - s.Lo})
		if err := k.find(i); fault.KindOf(err) == fault.NotFound {
			k.left++
		} else if err != nil {
			return nil, err
		}
	}
	return k, nil
}

// find takes over the rows of a shard that is there.
func (k *Kept) find(shard int) error {
	f := k.shards[shard]
	keys, places, err := k.index(f.Name, shard)
	if err != nil {
		return err
	}
	if s := k.w.shards[shard]; HashKeys(keys) != HashKeys(k.w.keys[s.Lo:s.Hi]) {
		return fault.In(fault.Format, filepath.Join(k.Dir, f.Name), "holds other rows than its name says").WithHint(remake).
			WithID("E-CACHE-031")
	}
	for i, key := range keys {
		k.places[key] = places[i]
	}
	return nil
}

// Whole reports whether all rows are there.
func (k *Kept) Whole() bool { return k.left == 0 }

// Has reports whether a row is one of the cache's, be it made or not.
func (k *Kept) Has(key Key) bool { _, ok := k.numbers[key]; return ok }

// Next returns rows [lo,hi) of all, at most PassRows, that have to be made before row key can be read; false: it can be
// read. A shard that was begun is finished first.
func (k *Kept) Next(key Key) (lo, hi int, missing bool, err error) {
	n, ok := k.numbers[key]
	if !ok {
		return 0, 0, false, k.absent(key)
	}
	if _, there := k.places[key]; there {
		return 0, 0, false, nil
	}
	if s := n / k.ShardRows; k.open < 0 {
		k.open = s
	} else if k.open == s && n-k.w.shards[s].Lo < len(k.rows) {
		return 0, 0, false, nil
	}
	s := k.w.shards[k.open]
	lo = s.Lo + len(k.rows)
	return lo, min(lo+k.PassRows, s.Hi), true, nil
}

// Add takes the rows that Next returned, as the cache has them.
func (k *Kept) Add(rows [][]byte) error {
	k.rows = append(k.rows, rows...)
	s := k.w.shards[k.open]
	if len(k.rows) < s.Hi-s.Lo {
		return nil
	}
	if err := k.w.Write(s, k.rows); err != nil {
		return err
	}
	if err := k.find(k.open); err != nil {
		return err
	}
	for _, r := range k.rows {
		k.Bytes += int64(len(r))
	}
	k.open, k.rows, k.left = -1, nil, k.left-1
	return nil
}

// Seal seals the cache, whose rows are all there.
func (k *Kept) Seal(extra ...string) error {
	missing, err := k.w.Seal(extra...)
	if err == nil && len(missing) > 0 {
		err = fault.In(fault.NotFound, filepath.Join(k.Dir, missing[0]), "a file of the cache is missing").WithHint(remake).
			WithID("E-CACHE-035")
	}
	return err
}

// pending returns the bytes of a row of the shard that is being made.
func (k *Kept) pending(key Key) ([]byte, bool) {
	if n, ok := k.numbers[key]; ok && k.open >= 0 {
		if at := n - k.w.shards[k.open].Lo; at >= 0 && at < len(k.rows) {
			return k.rows[at], true
		}
	}
	return nil, false
}

// Drawn returns the draws of a row that was made.
func (k *Kept) Drawn(key Key) (Drawn, error) {
	if b, ok := k.pending(key); ok {
		return DecodeDraws(k.Header, b)
	}
	return k.Reader.Drawn(key)
}

// Hidden is Reader.Hidden of a row that was made.
func (k *Kept) Hidden(key Key, dst []float32) error {
	if b, ok := k.pending(key); ok {
		return DecodeHidden(k.Header, dst, b)
	}
	return k.Reader.Hidden(key, dst)
}
