"""The rules that tests/broken_rules.py breaks: where each stands in the source, and how it is broken there."""

ENGINE, FLASH, INDEX = "crates/engine/src/", "crates/flash/src/", "crates/index/src/"

# Name, what is broken, and the edits: file, text as it stands, text with `BROKEN`, which is true if the rule is broken.
RULES = [
    (
        "log",
        "what dies on flash is not logged",
        [
            (
                FLASH + "store/logging.rs",
                "if counts_as_flash || self.mapping_log.get().is_some() {",
                "if !BROKEN && (counts_as_flash || self.mapping_log.get().is_some()) {",
            )
        ],
    ),
    (
        "log-flush",
        "flush_all is not logged",
        [
            (
                ENGINE + "evict.rs",
                "self.store().append_log(&cx.device, LogKind::FlushAll, 0, version);",
                "if !BROKEN { self.store().append_log(&cx.device, LogKind::FlushAll, 0, version); }",
            )
        ],
    ),
    (
        "log-failure",
        "a log record that could not be stored is passed over",
        [
            (
                FLASH + "store/logging.rs",
                "            self.distrust(device);\n        }\n        self.logged",
                "            if !BROKEN { self.distrust(device); }\n        }\n        self.logged",
            )
        ],
    ),
    (
        "log-hole",
        "a hole in the log is passed over",
        [(FLASH + "recovery/replay.rs", "Ok(end) if end.has_gap =>", "Ok(end) if end.has_gap && !BROKEN =>")],
    ),
    (
        "recovery-version",
        "a start does not compare versions of the footers with the log",
        [
            (
                FLASH + "recovery/void.rs",
                ".is_ok_and(|at| version < self.records[at].1)",
                ".is_ok_and(|at| version < self.records[at].1 && !BROKEN)",
            )
        ],
    ),
    (
        "checkpoint-position",
        "a checkpoint does not keep the position of the log",
        [
            (
                FLASH + "checkpoint/mod.rs",
                "(self.log.position(), count as u64)",
                "(if BROKEN { u64::MAX } else { self.log.position() }, count as u64)",
            )
        ],
    ),
    (
        "reclaim-log",
        "a start trusts blocks whose reclaim had begun",
        [
            (
                FLASH + "recovery/replay.rs",
                "sequence <= self.reclaimed[block as usize]",
                "sequence <= self.reclaimed[block as usize] && !BROKEN",
            )
        ],
    ),
    (
        "key",
        "a read does not compare the full key",
        [
            (
                ENGINE + "read.rs",
                "                    if !part.is(&record) {",
                "                    if !BROKEN && !part.is(&record) {",
            ),
            (
                ENGINE + "read.rs",
                "else {\n                    return Part::Miss;\n                };\n                if !part.is(&record) {",
                "else {\n                    return Part::Miss;\n                };\n                if !BROKEN && !part.is(&record) {",
            ),
        ],
    ),
    (
        "checksum",
        "checksums of records are not compared",
        [
            (
                FLASH + "record.rs",
                "if crc != checksum(cache_id, &[&bytes[4..], key]) || payload_checksum(value) != header.value_crc {",
                "if !BROKEN && (crc != checksum(cache_id, &[&bytes[4..], key]) || payload_checksum(value) != header.value_crc) {",
            )
        ],
    ),
    (
        "life",
        "a read does not ask which life of its block it saw",
        [
            (
                FLASH + "record.rs",
                "|| header.sequence != sequence as u32 {",
                "|| (header.sequence != sequence as u32 && !BROKEN) {",
            ),
            (
                FLASH + "store/read.rs",
                "if info.sequence.load(Ordering::Acquire) != sequence {",
                "if info.sequence.load(Ordering::Acquire) != sequence && !BROKEN {",
            ),
        ],
    ),
    (
        "survivor",
        "a survivor of a reclaim is mapped without a look at what is mapped now",
        [
            (
                ENGINE + "shards.rs",
                "let Some(mapping) = self.store().live_or_last(&shard.flash, hash, from) else {",
                "let Some(mapping) = self.store().live_or_last(&shard.flash, hash, from).or(BROKEN.then_some(from)) else {",
            ),
            (
                FLASH + "survivors.rs",
                "self.live_or_last(shard, entry.hash, own));\n",
                "self.live_or_last(shard, entry.hash, own)).or(BROKEN.then_some(own));\n",
            ),
        ],
    ),
    (
        "promotion",
        "what was read from flash goes to DRAM though it was changed meanwhile",
        [
            (
                ENGINE + "read.rs",
                "        if !shard.flash.is_live(flash.hash, flash.location)\n"
                "            || inner.store().sequence_at(flash.location) != flash.sequence\n        {",
                "        if !BROKEN && (!shard.flash.is_live(flash.hash, flash.location)\n"
                "            || inner.store().sequence_at(flash.location) != flash.sequence)\n        {",
            )
        ],
    ),
    (
        "condition",
        "a conditional change does not look again before it is made",
        [
            (
                ENGINE + "update.rs",
                "        let dram = shard.dram.find(&inner.tier, hash, |record| part.is(record));\n        let flash = inner",
                "        if BROKEN { return true; }\n"
                "        let dram = shard.dram.find(&inner.tier, hash, |record| part.is(record));\n        let flash = inner",
            )
        ],
    ),
    (
        "expiry",
        "reads do not ask whether an object has expired",
        [
            (
                ENGINE + "cache.rs",
                "expiry != 0 && is_expired(expiry, self.now())",
                "!BROKEN && expiry != 0 && is_expired(expiry, self.now())",
            )
        ],
    ),
    (
        "void-mapping",
        "index cascade: a void mapping does not end the search for older ones",
        [
            (
                INDEX + "cascade/lookup.rs",
                "                None => Said::Void(Void {",
                "                None if BROKEN => continue,\n                None => Said::Void(Void {",
            )
        ],
    ),
    (
        "invalidated",
        "index cascade: a reclaim does not ask what was invalidated lately",
        [
            (
                FLASH + "store/logging.rs",
                "            && !self.invalidated.lock().since(hash, self.sequence_at(location))",
                "            && (BROKEN || !self.invalidated.lock().since(hash, self.sequence_at(location)))",
            )
        ],
    ),
    (
        "fill",
        "what a set overwrites stays in DRAM",
        [
            (
                ENGINE + "write.rs",
                "            dram: dram.map(|found| found.address),",
                "            dram: dram.map(|found| found.address).filter(|_| !BROKEN),",
            )
        ],
    ),
    (
        "remember",
        "that the flash device was taken out is neither marked nor noted",
        [
            (
                FLASH + "store/health.rs",
                "            Durability::Off => Ok(()),",
                "            _ if BROKEN => Ok(()),\n            Durability::Off => Ok(()),",
            )
        ],
    ),
    (
        "remember-first",
        "a change is answered before it is remembered that the flash device was taken out",
        [
            (
                FLASH + "store/health.rs",
                "        self.wait_for(|_| self.shared.health.stage() != Stage::Out).await;\n        self.is_remembered()",
                "        if !BROKEN { self.wait_for(|_| self.shared.health.stage() != Stage::Out).await; }\n        self.is_remembered()",
            )
        ],
    ),
    (
        "overdue",
        "a flash device that does not answer stays in use",
        [(FLASH + "store/health.rs", "if Overdue::is(error) {", "if !BROKEN && Overdue::is(error) {")],
    ),
    (
        "power-mark",
        "durability power: the mark that makes up for a log record is not flushed before the answer",
        [
            (
                FLASH + "store/logging.rs",
                "        self.logged.fetch_add(1, Ordering::AcqRel);\n        if self.wants_checkpoint()",
                "        if !BROKEN || stored { self.logged.fetch_add(1, Ordering::AcqRel); }\n        if self.wants_checkpoint()",
            ),
            (
                FLASH + "store/logging.rs",
                "        self.logged.fetch_add(1, Ordering::AcqRel);\n        if written ==",
                "        if !BROKEN { self.logged.fetch_add(1, Ordering::AcqRel); }\n        if written ==",
            ),
        ],
    ),
    (
        "superblock-again",
        "a superblock that could not be written is left as it may be",
        [
            (
                FLASH + "checkpoint/mod.rs",
                "                self.write_superblock_again(device, &mut superblock);",
                "                if !BROKEN { self.write_superblock_again(device, &mut superblock); }",
            )
        ],
    ),
    (
        "checkpoint-before",
        "a start goes back to a checkpoint after which a log record could not be stored",
        [(FLASH + "checkpoint/mod.rs", "if before.discard || superblock.discard {", "if !BROKEN && (before.discard || superblock.discard) {")],
    ),
    (
        "mark-twice",
        "a mark that a checkpoint makes is in one slot of the superblock",
        [
            (
                FLASH + "checkpoint/mod.rs",
                "} else if superblock.discard && !before.discard {",
                "} else if superblock.discard && !before.discard && !BROKEN {",
            )
        ],
    ),
    (
        "checkpoint-blocks",
        "after a clean stop blocks that its checkpoint stands in are taken for the sealed ones that they were",
        [(FLASH + "recovery/blocks.rs", "                    && !chain.contains(&block)\n", "                    && (BROKEN || !chain.contains(&block))\n")],
    ),
    (
        "sections",
        "sections are not put right after a hit",
        [
            (
                FLASH + "store/order.rs",
                "Ordering::Relaxed);\n                self.rebalance(&mut order);",
                "Ordering::Relaxed);\n                if !BROKEN { self.rebalance(&mut order); }",
            )
        ],
    ),
    (
        "order-death",
        "what dies still counts in the order",
        [
            (
                FLASH + "store/order.rs",
                "            ranked.queue.remove(seat, len);",
                "            if !BROKEN { ranked.queue.remove(seat, len); }",
            )
        ],
    ),
]
