// The C++ face of libckpt: what ckpt.hpp adds to ckpt.h.
#include <gtest/gtest.h>

#include <ckpt/ckpt.hpp>

#include "client/src/test_trainer.h"

namespace ckptd {
namespace {

class HppTest : public ::testing::Test {
 protected:
  void SetUp() override { agent_.Start(); }
  [[nodiscard]] ckpt_cpp::Checkpointer Open(const std::string& job = "job") const {
    return ckpt_cpp::Checkpointer(job, 0, 1, 10, agent_.socket());
  }

  FakeAgent agent_;
};

TEST_F(HppTest, AFailureIsAnExceptionWithItsCodeAndSentence) {
  try {
    (void)Open("no job/name");
    FAIL() << "a bad name was taken";
  } catch (const ckpt_cpp::Error& error) {
    EXPECT_EQ(error.status(), CKPT_E_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("INVALID_ARGUMENT: "), std::string::npos) << error.what();
  }
}

TEST_F(HppTest, SavesATableWithAnAlias) {
  std::vector<char> weights(1000, 'w');
  ckpt_cpp::Checkpointer opened = Open();
  ckpt_cpp::Table table;
  table.Add("weights", CKPT_U8, {weights.size()}, weights.data());
  table.AddAlias("tied", 0);
  opened.Register(table, 64);
  ASSERT_TRUE(Eventually([&] { return opened.Info().ready != 0; })) << opened.Info().last_sentence;
  agent_.Grant(0);
  ASSERT_EQ(opened.Save(10, "{}", table.data()), 0) << ckpt_error();
  ASSERT_EQ(opened.Gate(), 0);
  EXPECT_TRUE(Eventually([&] { return (opened.Poll(10).flags & CKPT_COPIED) != 0; }));
  EXPECT_NE(agent_.SlotBytes(0).find("tied"), std::string::npos) << "the header tells the second name";
  EXPECT_NE(agent_.SlotBytes(0).find(std::string(weights.size(), 'w')), std::string::npos);
}

TEST_F(HppTest, AHandleMovesAndIsClosedOnce) {
  ckpt_cpp::Checkpointer first = Open();
  ckpt* const handle = first.get();
  ckpt_cpp::Checkpointer second(std::move(first));
  EXPECT_EQ(second.get(), handle);
  ckpt_cpp::Checkpointer third = Open();
  third = std::move(second);
  EXPECT_EQ(third.get(), handle);
  EXPECT_EQ(third.Close(ckpt_cpp::Checkpointer::Nanoseconds(0)), 0);
  EXPECT_EQ(third.get(), nullptr);
  EXPECT_EQ(third.Close(ckpt_cpp::Checkpointer::Nanoseconds(0)), 0) << "a second time";
}

}  // namespace
}  // namespace ckptd
