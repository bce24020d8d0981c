"""Conversations of four domains to begin with: `ConversationEnvironment(**CONVERSATION_CONFIGS["sales"])`."""

from __future__ import annotations

from typing import Any, Final

CONVERSATION_CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "customer_service": {
        "system_prompt": "You work at the service desk of a shop. Be polite, ask for what you need, promise only "
        "what you can do.",
        "max_turns": 6,
        "scenarios": [
            {
                "id": "late-parcel",
                "topic": "delivery",
                "domain": "customer_service",
                "user_responses": [
                    "Hi, my parcel was due yesterday and is not here.",
                    "The order number is 12345.",
                    "Can you tell me when it comes?",
                    "All right, thank you.",
                ],
                "metadata": {"difficulty": "easy", "category": "delivery"},
            },
            {
                "id": "broken-lamp",
                "topic": "return",
                "domain": "customer_service",
                "user_responses": [
                    "The lamp that I bought has a crack.",
                    "I bought it three weeks ago. I threw the box away.",
                    "I would rather have my money back than a new one.",
                ],
                "metadata": {"difficulty": "medium", "category": "return"},
            },
        ],
    },
    "technical_support": {
        "system_prompt": "You help with technical trouble. Find the cause before the remedy, one step at a time.",
        "max_turns": 8,
        "scenarios": [
            {
                "id": "app-crash",
                "topic": "crash",
                "domain": "technical_support",
                "user_responses": [
                    "The app closes by itself.",
                    "It happens when I log in.",
                    "Version 2.3.1 on Android.",
                    "I have installed it anew already.",
                ],
                "metadata": {"difficulty": "medium", "category": "bug_report"},
            },
            {
                "id": "no-network",
                "topic": "connection",
                "domain": "technical_support",
                "user_responses": [
                    "My laptop finds no network any more.",
                    "The telephone is online in the same room.",
                    "Yes, the switch at the side is on.",
                ],
                "metadata": {"difficulty": "easy", "category": "connection"},
            },
        ],
    },
    "sales": {
        "system_prompt": "You advise customers of a furniture shop. Find out what they need, name prices as they are, "
        "and do not press.",
        "max_turns": 6,
        "scenarios": [
            {
                "id": "desk-chair",
                "topic": "chair",
                "domain": "sales",
                "context": "In stock: the chair Linde, 189 €, and the chair Ahorn, 349 €, with an adjustable back.",
                "user_responses": [
                    "I am looking for a chair for my desk.",
                    "I sit for eight hours, and my back hurts.",
                    "That is a lot of money. Is there anything cheaper?",
                ],
                "metadata": {"difficulty": "medium", "category": "advice"},
            },
            {
                "id": "just-looking",
                "topic": "browse",
                "domain": "sales",
                "context": "Open until 19:00. Delivery costs 39 €.",
                "user_responses": ["I am only looking around.", "How late are you open today?"],
                "metadata": {"difficulty": "easy", "category": "information"},
            },
        ],
    },
    "education": {
        "system_prompt": "You are a tutor. Let the pupil find the answer: ask, give hints, and praise a right step.",
        "max_turns": 8,
        "scenarios": [
            {
                "id": "fractions",
                "topic": "fractions",
                "domain": "education",
                "user_responses": [
                    "What is 1/2 plus 1/3?",
                    "Is it 2/5?",
                    "Why can I not add the lower numbers?",
                    "Then 3/6 plus 2/6 is 5/6.",
                ],
                "metadata": {"difficulty": "medium", "category": "mathematics"},
            },
            {
                "id": "photosynthesis",
                "topic": "plants",
                "domain": "education",
                "user_responses": [
                    "Where do plants get their food from?",
                    "From the soil?",
                    "So they need light for it?",
                ],
                "metadata": {"difficulty": "easy", "category": "biology"},
            },
        ],
    },
}
"""Arguments of a `ConversationEnvironment`, by domain."""
