//! What the tests of the pipeline share.

/// Polls a future this often, letting other tasks run in between, and then drops it.
pub async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx)));
        if let std::task::Poll::Ready(value) = poll.await {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}
