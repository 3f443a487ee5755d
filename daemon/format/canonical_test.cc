#include "daemon/format/canonical.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

TEST(Canonical, WrappersGoWhereverTheyStand) {
  const std::pair<const char*, const char*> names[] = {
      {"layer.weight", "layer.weight"},
      {"module.layer.weight", "layer.weight"},
      {"_orig_mod.module.layer.weight", "layer.weight"},
      {"layers.3._checkpoint_wrapped_module.q.weight", "layers.3.q.weight"},
      {"optim.state.module.layer.weight.exp_avg", "optim.state.layer.weight.exp_avg"},
      {"modules.weight", "modules.weight"},
      {"my_module.weight", "my_module.weight"},
      {"layer.module", "layer.module"},
      {"module", "module"},
      {"", ""},
      {"a..b", "a..b"}};
  for (auto [name, canonical] : names) {
    EXPECT_EQ(CanonicalName(name), canonical);
    EXPECT_EQ(CanonicalName(CanonicalName(name)), canonical);
  }
}

TEST(Canonical, CollisionsNameBoth) {
  EXPECT_EQ(CanonicalNames({"module.a", "b"}).value(), (std::vector<std::string>{"a", "b"}));
  absl::Status status = CanonicalNames({"module.a", "b", "_orig_mod.a"}).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("module.a"), ::testing::HasSubstr("_orig_mod.a")));
}

}  // namespace
}  // namespace ckptd
