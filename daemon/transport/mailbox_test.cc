#include "daemon/transport/mailbox.h"

#include <gtest/gtest.h>

#include <string>

#include "daemon/base/clock.h"
#include "daemon/os/thread.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;

TEST(Mailbox, EventsOfAThreadComeInOrderAndAllOfThem) {
  auto loop = *Loop::Create(SystemClock(), 4);
  auto mailbox = Mailbox::Create(*loop);
  constexpr int kThreads = 4;
  constexpr int kEvents = 5000;
  std::vector<int> next(kThreads);
  int all = 0;
  std::vector<Thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back("put", [&, t] {
      for (int i = 0; i < kEvents; ++i)
        mailbox->Put([&next, &all, t, i] {
          EXPECT_EQ(next[static_cast<size_t>(t)]++, i);
          ++all;
        });
    });
  }
  while (all < kThreads * kEvents) ASSERT_TRUE(loop->RunOnce(milliseconds(100)).ok());
  for (Thread& thread : threads) thread.Join();
  mailbox->Close();
}

TEST(Mailbox, AFullLoopLosesNothing) {
  auto loop = *Loop::Create(SystemClock(), 1);
  auto mailbox = Mailbox::Create(*loop);
  ASSERT_TRUE(loop->Post([] {}));
  int ran = 0;
  mailbox->Put([&ran] { ++ran; });
  ASSERT_TRUE(loop->RunOnce(milliseconds(1)).ok());
  EXPECT_EQ(ran, 0) << "the loop had no place for it";
  mailbox->Drain();
  EXPECT_EQ(ran, 1);
  mailbox->Put([&ran] { ++ran; });
  ASSERT_TRUE(loop->RunOnce(milliseconds(1)).ok());
  EXPECT_EQ(ran, 2) << "it posts again";
  mailbox->Close();
}

TEST(Mailbox, NothingRunsAfterCloseAlsoWhenAnEventClosesIt) {
  auto loop = *Loop::Create(SystemClock(), 4);
  auto mailbox = Mailbox::Create(*loop);
  std::string ran;
  mailbox->Put([&] {
    ran += "a";
    mailbox->Close();
  });
  mailbox->Put([&] { ran += "b"; });
  mailbox->Drain();
  mailbox->Put([&] { ran += "c"; });
  mailbox->Drain();
  EXPECT_EQ(ran, "a");
}

}  // namespace
}  // namespace ckptd::transport
