//! What is stored and asked, the same for every subject.
//!
//! A *chain* is a list of block hashes, root first. *Private*: each replica holds chains of its own. *Shared*: every chain is
//! held by several replicas. *Wide*: one chain that most replicas hold to some depth. Hashes are stirred numbers, so that
//! neighbours in a chain are not neighbours in any table.

/// One thing that a replica says.
#[derive(Debug, Clone)]
pub enum Op {
    /// It holds these blocks now: `hashes[from..to]` of chain `chain`.
    Store {
        /// Who.
        replica: u32,
        /// Number of the chain in the workload.
        chain: u32,
        /// First block.
        from: u32,
        /// Behind the last block.
        to: u32,
        /// Nothing of this chain follows from this replica.
        last: bool,
    },
    /// It holds them no longer.
    Remove {
        /// Who.
        replica: u32,
        /// Number of the chain in the workload.
        chain: u32,
        /// First block.
        from: u32,
        /// Behind the last block.
        to: u32,
    },
}

/// Chains, and how many replicas there are.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Number of replicas.
    pub replicas: u32,
    /// Hashes of each chain.
    pub chains: Vec<Vec<u64>>,
}

/// The hash at `position` of chain `chain`.
#[must_use]
pub fn hash(chain: u64, position: u64) -> u64 {
    let mut x = (chain << 20 | position).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Seeded numbers; good enough to choose chains by.
#[derive(Debug, Clone)]
pub struct Draw(pub u64);

impl Draw {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash(self.0 >> 20, self.0 & 0xf_ffff) % n.max(1)
    }
}

impl Workload {
    /// About `blocks` distinct blocks in chains of `len`.
    #[must_use]
    pub fn of(blocks: usize, replicas: u32, len: usize) -> Self {
        Self::from(0, blocks, replicas, len)
    }

    /// The same with chains that no workload with a smaller `first` has.
    #[must_use]
    pub fn from(first: u64, blocks: usize, replicas: u32, len: usize) -> Self {
        let chains = (0..(blocks / len).max(1) as u64)
            .map(|id| (0..len as u64).map(|position| hash(first + id, position)).collect())
            .collect();
        Self { replicas, chains }
    }

    /// Who holds a chain in the private layout.
    #[must_use]
    pub fn owner(&self, chain: usize) -> u32 {
        chain as u32 % self.replicas
    }

    /// Every chain stored by its owner and the `holders - 1` replicas after it, `step` blocks an event. Chains of
    /// different replicas are interleaved as they would be in a fleet: one event a replica in turn.
    #[must_use]
    pub fn stores(&self, holders: u32, step: usize) -> Vec<Op> {
        self.ops(holders, step, |replica, chain, from, to| {
            let last = to as usize == self.chains[chain as usize].len();
            Op::Store { replica, chain, from, to, last }
        })
    }

    /// The removals that undo [`Workload::stores`], tail first within a chain.
    #[must_use]
    pub fn removes(&self, holders: u32, step: usize) -> Vec<Op> {
        let mut ops = self.ops(holders, step, |replica, chain, from, to| Op::Remove { replica, chain, from, to });
        ops.reverse();
        ops
    }

    fn ops(&self, holders: u32, step: usize, make: impl Fn(u32, u32, u32, u32) -> Op) -> Vec<Op> {
        let mut ops = Vec::new();
        let group = self.replicas as usize;
        for first in (0..self.chains.len()).step_by(group) {
            let group = first..(first + group).min(self.chains.len());
            for holder in 0..holders {
                let longest = group.clone().map(|i| self.chains[i].len()).max().unwrap_or(0);
                for from in (0..longest).step_by(step) {
                    for chain in group.clone() {
                        let to = (from + step).min(self.chains[chain].len());
                        if from < to {
                            let replica = (self.owner(chain) + holder) % self.replicas;
                            ops.push(make(replica, chain as u32, from as u32, to as u32));
                        }
                    }
                }
            }
        }
        ops
    }

    /// One chain of `len` blocks that `scored` replicas hold: the first half of it all, the rest to a depth by lot.
    #[must_use]
    pub fn wide(replicas: u32, scored: u32, len: usize) -> (Self, Vec<Op>) {
        let workload = Self::from(1 << 30, len, replicas, len);
        let mut draw = Draw(7);
        let ops = (0..scored)
            .map(|i| {
                let half = len as u64 / 2;
                let to = if i % 2 == 0 { len as u32 } else { (half + draw.below(half)) as u32 };
                Op::Store { replica: i * (replicas / scored.max(1)).max(1), chain: 0, from: 0, to, last: true }
            })
            .collect();
        (workload, ops)
    }

    /// Total blocks in `ops`.
    #[must_use]
    pub fn blocks(ops: &[Op]) -> u64 {
        ops.iter()
            .map(|op| match op {
                Op::Store { from, to, .. } | Op::Remove { from, to, .. } => u64::from(to - from),
            })
            .sum()
    }
}
