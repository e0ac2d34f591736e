module apr

go 1.26.0
