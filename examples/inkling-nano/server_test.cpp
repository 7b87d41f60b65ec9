// Batching must not change a text: alone, among others, joining late, with small pages or small pools.
#include "server.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "weights.hpp"

namespace inkling {
namespace {

const Weights& weights() {
  static const Weights loaded = load_weights(INKLING_NANO_FOLDER "/model");
  return loaded;
}

std::string long_prompt() {
  std::string text;
  for (int verse = 1; text.size() < 600; ++verse) text += "And he said unto them the word " + std::to_string(verse) + ". ";
  return text;
}

std::vector<std::string> serve(const ServerOptions& options, const std::vector<Request>& requests,
                               ServerStats* stats = nullptr) {
  Server server(weights(), options);
  for (const Request& request : requests) server.submit(request);
  while (server.step()) {
  }
  if (stats != nullptr) *stats = server.stats();
  std::vector<std::string> texts;
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) texts.push_back(server.text(i));
  EXPECT_EQ(server.cache().n_pages_in_use(false), 0);
  EXPECT_EQ(server.cache().n_pages_in_use(true), 0);
  return texts;
}

std::vector<Request> requests(float temperature) {
  return {{"In the beginning", 24, {temperature, 0, 1}},
          {long_prompt(), 24, {temperature, 0, 2}},
          {"She", 40, {temperature, 0, 3}},
          {"The whale was", 12, {temperature, 0, 4}}};
}

TEST(Server, ATextDoesNotDependOnTheOthers) {
  for (const flashrel::DType dtype : {flashrel::DType::kBFloat16, flashrel::DType::kFloat32})
    for (const float temperature : {0.0f, 0.8f}) {
      ServerOptions options;
      options.dtype = dtype;
      options.max_running = 3;  // the fourth joins when another has left
      ServerStats stats;
      const std::vector<std::string> together = serve(options, requests(temperature), &stats);
      EXPECT_EQ(stats.max_batch, 3);
      for (std::size_t i = 0; i < together.size(); ++i)
        EXPECT_EQ(serve(options, {requests(temperature)[i]})[0], together[i])
            << "request " << i << ", temperature " << temperature;
    }
}

TEST(Server, ATextDoesNotDependOnPagesAndChunks) {
  ServerOptions options;
  options.dtype = flashrel::DType::kFloat32;
  const std::vector<std::string> expected = serve(options, requests(0));
  options.page_size = 16, options.chunk = 100, options.chunks_per_step = 1;
  EXPECT_EQ(serve(options, requests(0)), expected);
}

TEST(Server, RequestsWaitForTheirTurn) {
  ServerOptions options;
  options.max_length = 256;
  options.max_running = 3;
  std::vector<std::string> log;
  Server server(weights(), options);
  server.on_event = [&](Server::Event event, int id) {
    log.push_back((event == Server::Event::kJoined ? "+" : "-") + std::to_string(id));
  };
  for (int i = 0; i < 5; ++i) server.submit({"And it came to pass", 3 + i, {}});
  while (server.step()) {
  }
  EXPECT_EQ(log, (std::vector<std::string>{"+0", "+1", "+2", "-0", "+3", "-1", "+4", "-2", "-3", "-4"}));
  EXPECT_EQ(server.stats().max_batch, 3);
  for (int i = 1; i < 5; ++i) EXPECT_EQ(server.text(i).substr(0, 3), server.text(0));
}

TEST(Server, RefusesWhatItCanNeverServe) {
  ServerOptions options;
  options.max_length = 64;
  Server server(weights(), options);
  EXPECT_THROW(server.submit({"", 1, {}}), std::invalid_argument);
  EXPECT_THROW(server.submit({"a", 0, {}}), std::invalid_argument);
  EXPECT_THROW(server.submit({std::string(60, 'a'), 5, {}}), std::invalid_argument);
  EXPECT_EQ(server.submit({std::string(60, 'a'), 4, {}}), 0);
}

}  // namespace
}  // namespace inkling
