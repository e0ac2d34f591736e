// random.cuh: generators that count. A number depends on its key and its place alone.

// split_mix is the upper half of number i+1 of SplitMix64 from state key (Steele et al. 2014): device.DropNumber.
APR_DEVICE u32 split_mix(u64 key, u64 i) {
    u64 z = key + (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (u32)((z ^ z >> 31) >> 32);
}

// philox is block (c0, c1, 0, 0) of Philox4x32-10 (Salmon et al. 2011): device.Philox.
APR_DEVICE u32x4 philox(u32 key0, u32 key1, u32 c0, u32 c1) {
    u32 c2 = 0, c3 = 0;
    for (int i = 0; i < 10; i++) {
        const u64 p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = (u32)(p1 >> 32) ^ c1 ^ key0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ key1;
        c3 = (u32)p0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return u32x4{c0, c1, c2, c3};
}
