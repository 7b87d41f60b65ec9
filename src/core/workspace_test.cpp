#include "core/workspace.hpp"

#include <gtest/gtest.h>

namespace flashrel {
namespace {

TEST(Workspace, EntriesAreAlignedDisjointAndInOrder) {
  Workspace ledger;
  const std::size_t sizes[] = {1, 256, 257, 1000, 4};
  for (std::size_t i = 0; i < 5; ++i) ledger.book("entry" + std::to_string(i), sizes[i]);
  ASSERT_EQ(ledger.entries().size(), 5u);
  std::size_t end = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    const Workspace::Entry& entry = ledger.entries()[i];
    EXPECT_EQ(entry.bytes, sizes[i]);
    EXPECT_EQ(entry.offset % Workspace::kAlignment, 0u);
    EXPECT_TRUE(end <= entry.offset && entry.offset < end + Workspace::kAlignment) << "no overlap, no hole";
    end = entry.offset + entry.bytes;
  }
  EXPECT_TRUE(end <= ledger.total_bytes() && ledger.total_bytes() < end + Workspace::kAlignment);
}

TEST(Workspace, LookupByName) {
  Workspace ledger;
  EXPECT_EQ(ledger.total_bytes(), 0u);
  ledger.book("items", 300);
  ledger.book("nothing", 0);
  ledger.book("parts", 8);
  alignas(Workspace::kAlignment) std::byte buffer[1024];
  EXPECT_EQ(ledger.at<int>(buffer, "items"), reinterpret_cast<int*>(buffer));
  EXPECT_EQ(ledger.at<float>(buffer, "parts"), reinterpret_cast<float*>(buffer + 512));
  EXPECT_EQ(ledger.at<float>(buffer, "nothing"), nullptr);
  EXPECT_EQ(ledger.at<float>(buffer, "absent"), nullptr);
  EXPECT_EQ(ledger.entries().size(), 2u);
}

}  // namespace
}  // namespace flashrel
