#include "daemon/os/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "daemon/os/event_fd.h"
#include "daemon/os/thread.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() : loop_(*Loop::Create(clock_, 4)) {}
  void Turn() { ASSERT_TRUE(loop_->RunOnce(Nanos(0)).ok()); }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_;
  std::vector<int> seen_;
};

TEST_F(LoopTest, TimersRunInOrderOfTheirDeadlines) {
  loop_->After(milliseconds(20), [&] { seen_.push_back(2); });
  loop_->After(milliseconds(10), [&] { seen_.push_back(1); });
  Loop::TimerId cancelled = loop_->After(milliseconds(15), [&] { seen_.push_back(99); });
  Turn();
  EXPECT_TRUE(seen_.empty());
  loop_->CancelTimer(cancelled);
  clock_.Advance(milliseconds(20));
  Turn();
  EXPECT_THAT(seen_, ElementsAre(1, 2));
  loop_->CancelTimer(cancelled);
  Turn();
  EXPECT_EQ(seen_.size(), 2u) << "once each";
}

TEST_F(LoopTest, ATimerMayCancelTheNext) {
  Loop::TimerId second = 0;
  loop_->After(milliseconds(1), [&] { loop_->CancelTimer(second); });
  second = loop_->After(milliseconds(2), [&] { seen_.push_back(2); });
  clock_.Advance(milliseconds(5));
  Turn();
  EXPECT_TRUE(seen_.empty());
}

TEST_F(LoopTest, WatchesUntilUnwatched) {
  UniqueFd event = *CreateEventFd();
  ASSERT_TRUE(loop_->Watch(event.get(), EPOLLIN, [&](uint32_t events) { seen_.push_back(events); }).ok());
  EXPECT_FALSE(loop_->Watch(event.get(), EPOLLIN, [](uint32_t) {}).ok()) << "twice";
  Turn();
  EXPECT_TRUE(seen_.empty());
  SignalEventFd(event.get());
  Turn();
  Turn();
  EXPECT_THAT(seen_, ElementsAre(EPOLLIN, EPOLLIN)) << "level-triggered";
  ASSERT_TRUE(loop_->ChangeEvents(event.get(), EPOLLOUT).ok());
  Turn();
  EXPECT_EQ(seen_.back(), EPOLLOUT);
  loop_->Unwatch(event.get());
  loop_->Unwatch(event.get());
  Turn();
  EXPECT_EQ(seen_.size(), 3u);
}

// As a transfer that came back too late: its end cancels its timer, stops to watch its socket and posts.
struct Transfer {
  Transfer(Loop& on, std::vector<int>& ended) : loop(on), seen(ended) {}
  ~Transfer() {
    loop.CancelTimer(timer);
    loop.Unwatch(fd);
    seen.push_back(loop.Post([] {}) ? 1 : 0);
  }
  Loop& loop;
  std::vector<int>& seen;
  int fd = -1;
  Loop::TimerId timer = 0;
};

TEST_F(LoopTest, WhatIsStillQueuedMayUseTheLoopAtItsEnd) {
  const UniqueFd event = *CreateEventFd();
  const auto make = [&] { return std::make_shared<Transfer>(*loop_, seen_); };
  auto posted = make();
  posted->timer = loop_->After(milliseconds(1), [of_timer = make()] {});
  posted->fd = event.get();
  ASSERT_TRUE(loop_->Watch(event.get(), EPOLLIN, [of_watch = make()](uint32_t) {}).ok());
  loop_->After(milliseconds(2), [another = make()] {});
  ASSERT_TRUE(loop_->Post([posted] {}));
  posted.reset();
  loop_.reset();
  EXPECT_THAT(seen_, ElementsAre(0, 0, 0, 0)) << "all of them went, and none could post";
}

// Two descriptors are ready in one round; whichever runs first takes the other away and reuses its number.
TEST_F(LoopTest, NoStaleEventForAReusedDescriptor) {
  UniqueFd first = *CreateEventFd(), second = *CreateEventFd();
  auto callback = [&](UniqueFd& other) {
    return [&](uint32_t) {
      seen_.push_back(1);
      int number = other.get();
      loop_->Unwatch(number);
      other.Reset();
      UniqueFd reused = *CreateEventFd();
      ASSERT_EQ(reused.get(), number);
      ASSERT_TRUE(loop_->Watch(number, EPOLLIN, [&](uint32_t) { seen_.push_back(99); }).ok());
      other = std::move(reused);
    };
  };
  ASSERT_TRUE(loop_->Watch(first.get(), EPOLLIN, callback(second)).ok());
  ASSERT_TRUE(loop_->Watch(second.get(), EPOLLIN, callback(first)).ok());
  SignalEventFd(first.get());
  SignalEventFd(second.get());
  Turn();
  EXPECT_THAT(seen_, ElementsAre(1));
}

TEST_F(LoopTest, PostIsBoundedAndDoesNotStarve) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(loop_->Post([this, i] { seen_.push_back(i); }));
  EXPECT_FALSE(loop_->Post([] {}));
  Turn();
  EXPECT_THAT(seen_, ElementsAre(0, 1, 2, 3));
  std::function<void()> again = [&] {
    seen_.push_back(7);
    if (seen_.size() < 100) (void)loop_->Post(again);
  };
  EXPECT_TRUE(loop_->Post(again));
  Turn();
  EXPECT_EQ(seen_.size(), 5u) << "one round runs what was queued at its start";
  Turn();
  EXPECT_EQ(seen_.size(), 6u);
}

TEST(Loop, OtherThreadsPostAndStop) {
  auto loop = *Loop::Create(SystemClock(), 1000);
  int sum = 0;
  {
    ThreadPool pool("poster", 4, 100);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(pool.Run([&loop, &sum] { EXPECT_TRUE(loop->Post([&sum] { ++sum; })); }));
    }
    ASSERT_TRUE(loop->Post([&] {
      loop->After(milliseconds(1), [&] {
        pool.Stop();  // all of them have posted
        EXPECT_TRUE(loop->Post([&] { loop->Stop(); }));
      });
    }));
    ASSERT_TRUE(loop->Run().ok());
  }
  EXPECT_EQ(sum, 100);
}

TEST(Thread, GoesBehindTheOthersByItself) {
  const auto nice = [](Priority priority) {
    int own = -1;
    Thread(
        "nice", [&] { own = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }, priority)
        .Join();
    return own;
  };
  const int before = getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(nice(Priority::kNormal), before);
  EXPECT_EQ(nice(Priority::kBehind), 10);
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before) << "of this thread alone";
}

TEST(ThreadPool, BoundedAndDrained) {
  int done = 0;
  {
    ThreadPool pool("one", 1, 2);
    auto gate = std::make_shared<BoundedQueue<int>>(1);
    ASSERT_TRUE(pool.Run([gate] { (void)gate->Pop(); }));
    while (pool.queued() > 0) std::this_thread::yield();  // the worker holds the first
    ASSERT_TRUE(pool.Run([&] { ++done; }));
    ASSERT_TRUE(pool.Run([&] { ++done; }));
    EXPECT_FALSE(pool.Run([] {})) << "full";
    ASSERT_TRUE(gate->TryPush(1));
    pool.Stop();
    EXPECT_FALSE(pool.Run([] {})) << "stopped";
  }
  EXPECT_EQ(done, 2);
}

}  // namespace
}  // namespace ckptd
