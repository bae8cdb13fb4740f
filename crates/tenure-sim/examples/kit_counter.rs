//! An application in the test kit: counters that must not lose an increment that they acknowledged.
//!
//! `cargo run --release -p tenure-sim --features kit --example kit_counter [SEEDS]` runs the right one, then one that
//! acknowledges before it writes, which the kit catches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tenure::{Handler, Hashed, Node, Result, Seal, Shard};
use tenure_sim::kit::{Kit, Scenario, Table, WriteResult};

#[derive(Clone)]
struct Counters {
    table: Table<u64>,
    hasty: bool,
}

impl Handler for Counters {
    type State = (Shard, BTreeMap<String, u64>);

    async fn load(&self, shard: &Shard) -> Result<Self::State> {
        self.table.fence(shard.id(), shard.epoch())?;
        let mine = |(row, _): &(String, u64)| row.starts_with(&format!("{}/", shard.name()));
        let rows = self.table.rows().into_iter().filter(mine);
        Ok((shard.clone(), rows.collect()))
    }

    async fn seal(&self, shard: &Shard, state: &mut Self::State) -> Result<Seal> {
        for (name, count) in state.1.iter().filter(|_| self.hasty) {
            self.table
                .write(shard.id(), shard.epoch(), name.as_str(), *count);
        }
        Ok(Seal::default())
    }
}

impl Counters {
    /// One more. True: it is counted, whatever happens from now on.
    fn increment(&self, (shard, counts): &mut (Shard, BTreeMap<String, u64>), name: &str) -> bool {
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        // The mistake: memory is not a promise. It is written down when the shard moves, if it moves in good order.
        self.hasty || self.table.write(shard.id(), shard.epoch(), name, *count) == WriteResult::Done
    }
}

struct Clients {
    counters: Counters,
    acknowledged: Mutex<BTreeMap<String, u64>>,
}

impl Scenario for Clients {
    type Handler = Counters;

    fn handler(&self, _node: &str) -> Counters {
        self.counters.clone()
    }

    async fn request(&self, node: &Node, n: u64) {
        let shard = n % 4;
        let name = format!("{shard}/counter-{}", n % 12);
        let shard = format!("counters/{shard}").parse().expect("a shard");
        let Ok(entered) = node.enter_shard::<Counters>(&shard) else {
            return; // another node's; a router would go on to it
        };
        let work = async |state: &mut _, _: &_| self.counters.increment(state, &name);
        if let (Ok(true), Ok(mut all)) = (entered.run(work).await, self.acknowledged.lock()) {
            *all.entry(name).or_default() += 1;
        }
    }

    fn finally(&self) -> Result<(), String> {
        let acknowledged = self.acknowledged.lock().map_err(|e| e.to_string())?;
        for (name, count) in acknowledged.iter() {
            let written = self.counters.table.read(name).unwrap_or(0);
            if written < *count {
                return Err(format!("{name}: {count} acknowledged, {written} written"));
            }
        }
        Ok(())
    }
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let kit = Kit::new("counters", Hashed(4));
    let scenario = |hasty| {
        let table = Table::fencing();
        Arc::new(Clients {
            counters: Counters { table, hasty },
            acknowledged: Mutex::default(),
        })
    };
    kit.check(0..seeds.unwrap_or(20), || scenario(false));
    println!("the right one: all went well");
    let caught = (0..20).find_map(|seed| kit.run(seed, scenario(true)).failure.map(|f| (seed, f)));
    println!("the hasty one: {caught:?}");
}
