package distill

import "apr/internal/disk"

// heldDisk changes nothing on a disk once the run's directory is another's: checkpoints are written, renamed and
// removed by path.
type heldDisk struct {
	disk.Disk
	held func() error
}

func (d heldDisk) Mkdir(path string) error {
	if err := d.held(); err != nil {
		return err
	}
	return d.Disk.Mkdir(path)
}

func (d heldDisk) Create(path string) (disk.File, error) {
	if err := d.held(); err != nil {
		return nil, err
	}
	return d.Disk.Create(path)
}

func (d heldDisk) Rename(from, to string) error {
	if err := d.held(); err != nil {
		return err
	}
	return d.Disk.Rename(from, to)
}

func (d heldDisk) Remove(path string) error {
	if err := d.held(); err != nil {
		return err
	}
	return d.Disk.Remove(path)
}
