//! Batches on stores that take one key at a time: many requests under way at once.

use std::collections::HashMap;

use futures_util::future::join_all;

/// Does everything, `at_once` at a time, with keys that are named twice one after the other; answers come in the order of the
/// questions.
pub(crate) async fn in_waves<Q, A, F>(
    at_once: usize,
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
            let part: Vec<(usize, Q)> = rest.by_ref().take(at_once).collect();
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
        let answers = in_waves(256, numbers.clone(), |k| k, |k| async move { k }).await;
        assert_eq!(answers, numbers);
    }
}
