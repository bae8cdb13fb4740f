//! Batches: many requests under way at once over one connection.

use std::collections::HashMap;

use futures_util::future::join_all;

use super::NatsStore;
use super::kv::Last;
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Entry, Put, PutIf};

/// How many requests are under way at once. The server holds back who has many more.
const AT_ONCE: usize = 256;

impl NatsStore {
    pub(super) async fn read_many(
        &self,
        keys: Vec<String>,
    ) -> Vec<Result<Option<Entry>, StoreError>> {
        let mut all = Vec::with_capacity(keys.len());
        for part in keys.chunks(AT_ONCE) {
            let asked = join_all(part.iter().map(|key| self.last(key)));
            // One look at the leader is enough for all that it answered meanwhile.
            let (answers, checked) = tokio::join!(asked, self.check_leader());
            all.extend(answers.into_iter().map(|answer| {
                let last = answer?;
                checked.clone()?;
                Ok(match last {
                    Last::Value(entry) => Some(entry),
                    Last::Deleted(_) | Last::Nothing => None,
                })
            }));
        }
        all
    }

    pub(super) async fn write_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        in_waves(puts, |put| &put.key, |put| self.write_one(put)).await
    }

    pub(super) async fn remove_many(
        &self,
        deletes: Vec<DeleteIf>,
    ) -> Vec<Result<Delete, StoreError>> {
        in_waves(
            deletes,
            |delete| &delete.key,
            |delete| self.remove_one(delete),
        )
        .await
    }
}

/// Does everything, with keys that are named twice one after the other; answers come in the order of the questions.
async fn in_waves<Q, A, F>(
    questions: Vec<Q>,
    key: impl Fn(&Q) -> &str,
    ask: impl Fn(Q) -> F,
) -> Vec<A>
where
    F: Future<Output = A>,
{
    let mut answers: Vec<Option<A>> = Vec::new();
    answers.resize_with(questions.len(), || None);
    for wave in waves(questions, key) {
        let mut rest = wave.into_iter();
        loop {
            let part: Vec<(usize, Q)> = rest.by_ref().take(AT_ONCE).collect();
            if part.is_empty() {
                break;
            }
            let asked = part.into_iter().map(|(n, question)| {
                let answer = ask(question);
                async move { (n, answer.await) }
            });
            for (n, answer) in join_all(asked).await {
                answers[n] = Some(answer);
            }
        }
    }
    answers.into_iter().flatten().collect()
}

/// Splits a batch so that no part names a key twice. Each question keeps its place.
fn waves<Q>(questions: Vec<Q>, key: impl Fn(&Q) -> &str) -> Vec<Vec<(usize, Q)>> {
    let mut waves: Vec<Vec<(usize, Q)>> = Vec::new();
    let mut named: HashMap<String, usize> = HashMap::new();
    for (n, question) in questions.into_iter().enumerate() {
        let times = named.entry(key(&question).to_owned()).or_default();
        if waves.len() == *times {
            waves.push(Vec::new());
        }
        waves[*times].push((n, question));
        *times += 1;
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_that_is_named_twice_waits_for_its_turn_and_answers_keep_their_order() {
        let keys = ["a", "b", "a", "c", "a", "b"];
        let places: Vec<Vec<usize>> = waves(keys.to_vec(), |k| k)
            .into_iter()
            .map(|wave| wave.into_iter().map(|(n, _)| n).collect())
            .collect();
        assert_eq!(places, [vec![0, 1, 3], vec![2, 5], vec![4]]);
        let numbers: Vec<String> = (0..1000).map(|n: u32| (n % 300).to_string()).collect();
        let answers = in_waves(numbers.clone(), |k| k, |k| async move { k }).await;
        assert_eq!(answers, numbers);
    }
}
